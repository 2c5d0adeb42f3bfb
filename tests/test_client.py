"""`promptcache.client`: the header names the schema that the server finds in the request."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx
import pytest
from fastapi import FastAPI, Request
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI

from promptcache import Engine
from promptcache.client import SCHEMA_HEADER, schema_of, set_schema_header, set_schema_header_async
from promptcache.server import ServerSettings, create_app
from tests.server.conftest import CHAT, TRAVEL, Served, running

PYTHON = re.findall(
    r"```python\n(.*?)```", (Path(__file__).parents[1] / "docs" / "scaling.md").read_text(encoding="utf-8"), re.DOTALL
)
PROMPT = '<prompt schema="travel"><miami/><user>What is the best dish of Miami?</user></prompt>'
CHAT_BY_NAME = {**CHAT, "model": "demo", "prompt_cache": {"schema": "travel", "use": ["miami"]}}
SYNC, ASYNC = {"request": [set_schema_header]}, {"request": [set_schema_header_async]}


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Served, list[str | None]]]:
    """A server, and the header of each request that it got."""
    engine = Engine.from_pretrained("demo")
    engine.add_schema(TRAVEL)
    app: FastAPI = create_app(engine, ServerSettings(model="demo"))
    headers: list[str | None] = []

    @app.middleware("http")
    async def _note(request: Request, call_next: Any) -> Any:
        if request.url.path.startswith("/v1/"):
            headers.append(request.headers.get(SCHEMA_HEADER))
        return await call_next(request)

    for served in running(app):
        yield served, headers


@pytest.mark.parametrize(
    ("path", "body", "schema"),
    [
        ("/v1/chat/completions", CHAT, "travel"),
        ("/v1/chat/completions", CHAT_BY_NAME, "travel"),
        ("/v1/chat/completions", {"model": "demo", "messages": CHAT["messages"], "max_tokens": 2}, None),
        ("/v1/completions", {"model": "demo", "prompt": "<prompt", "max_tokens": 2}, None),
        ("/v1/prompts", {"prompt": PROMPT, "max_tokens": 2}, "travel"),
        ("/v1/prompts", PROMPT, "travel"),
    ],
)
def test_the_header_is_the_schema_that_the_server_answers_with(
    server: tuple[Served, list[str | None]], path: str, body: Any, schema: str | None
) -> None:
    """Wherever a request names its schema, the header has it, and the server reports the same one."""
    served, headers = server
    content = body if isinstance(body, str) else json.dumps(body)
    kind = "application/xml" if isinstance(body, str) else "application/json"
    with httpx.Client(base_url=served.url, event_hooks=SYNC, timeout=30) as client:
        answer = client.post(path, content=content, headers={"content-type": kind})

    assert answer.status_code == 200, answer.text
    assert answer.json()["prompt_cache"]["schema"] == schema
    assert headers[-1] == schema


def test_openai_clients_send_the_header(server: tuple[Served, list[str | None]]) -> None:
    """The hooks work in both clients of openai, in streams as well."""
    served, headers = server
    url = f"{served.url}/v1"
    headers.clear()
    with (
        OpenAI(base_url=url, api_key="none", http_client=DefaultHttpxClient(event_hooks=SYNC)) as client,
        client.chat.completions.create(**CHAT_BY_NAME_OPENAI, stream=True) as stream,
    ):
        assert list(stream)

    async def ask() -> None:
        hooked = DefaultAsyncHttpxClient(event_hooks=ASYNC)
        async with AsyncOpenAI(base_url=url, api_key="none", http_client=hooked) as client:
            await client.chat.completions.create(**CHAT_BY_NAME_OPENAI)

    asyncio.run(ask())

    assert headers == ["travel", "travel"]


CHAT_BY_NAME_OPENAI: dict[str, Any] = {
    "model": "demo",
    "messages": CHAT["messages"],
    "max_tokens": 2,
    "extra_body": {"prompt_cache": CHAT_BY_NAME["prompt_cache"]},
}


@pytest.mark.parametrize("code", PYTHON)
def test_the_page_runs(server: tuple[Served, list[str | None]], code: str) -> None:
    """The examples of docs/scaling.md run, and the client's one sends the header."""
    served, headers = server
    names: dict[str, Any] = {}
    exec(code.replace("http://127.0.0.1:8000", served.url), names)

    if "client" in names:
        names["client"].close()
        assert "stone crab" in names["answer"].choices[0].message.content
        assert headers[-1] == "travel"


def test_a_header_that_is_set_is_kept() -> None:
    """A caller may choose another text to route by."""
    request = httpx.Request("POST", "http://a", json=CHAT, headers={SCHEMA_HEADER: "travel#2"})

    set_schema_header(request)

    assert request.headers[SCHEMA_HEADER] == "travel#2"


@pytest.mark.parametrize("name", ["trip", "Städte/東京", "a b\r\nx-evil: 1", "50%"])
def test_any_name_of_a_schema_fits_into_the_header(name: str) -> None:
    """Names are percent-encoded, so that no name ends the header."""
    request = httpx.Request("POST", "http://a", json={"model": f"demo@{name}"})

    set_schema_header(request)

    value = request.headers[SCHEMA_HEADER]
    assert value.isascii()
    assert value.isprintable()
    assert unquote(value) == name


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"1", b"{}", b"\xff", b'{"prompt_cache": 3}', b'{"prompt": ["a"]}', b"<prompt", b"<a/>"]
)
def test_bodies_without_a_schema_have_no_header(body: bytes) -> None:
    """The hook raises nothing: the server refuses what is wrong."""
    assert schema_of(body) is None
