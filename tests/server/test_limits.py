"""Keys, sizes, ids and the log: what a request meets before anything else."""

import json
import logging
import os
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute

from promptcache import Engine
from promptcache.diagnostics import InvalidValue
from promptcache.kv import StoreConfig, open_store
from promptcache.server import ApiKeys, raise_file_limit, read_keys
from promptcache.server.gate import digests
from tests.server.conftest import CHAT, CHATS, KEYS, ScriptedService, Served, in_process, scripted, wait_until


def test_everything_but_health_needs_the_key(served: Served) -> None:
    """Each endpoint is 401 without a key and with a wrong one, except the state of the process, and the page."""
    paths = {route.path: next(iter(route.methods)) for route in served.app.routes if isinstance(route, APIRoute)}
    paths |= dict.fromkeys((CHATS, "/v1/completions", "/v1/prompts", "/v1/check"), "POST")
    paths |= dict.fromkeys(
        ("/v1/models", "/v1/schemas", "/metrics", "/", "/page/page.js", "/nowhere", "/livez", "/health"), "GET"
    )
    refused: dict[str, set[int]] = {}
    for key in (None, "eve", "x y"):
        with served.http(key) as client:
            for path, method in paths.items():
                response = client.request(method, path.replace("{name:path}", "x"))
                refused.setdefault(path, set()).add(response.status_code)

    of_the_page = {"/", "/page/page.js", "/page/picture.css", "/page/elements.json"}
    assert {path for path, codes in refused.items() if codes != {401}} == {*of_the_page, "/livez", "/health"}


@pytest.mark.parametrize("chunked", [False, True])
def test_too_large_bodies_are_refused(engine: Engine, monkeypatch: pytest.MonkeyPatch, chunked: bool) -> None:
    """A body beyond the limit is 413, whether its length is announced or not."""
    app = scripted(engine, ScriptedService(), monkeypatch, max_body_bytes=1000)

    async def body() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post(CHATS, content=body() if chunked else b" " * 2000)

    response = in_process(app, ask)

    assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")


def test_request_ids(served: Served) -> None:
    """A plain id of the client is taken over; any other is replaced."""
    given = ("a.b-1", "a b", "x" * 200)
    ids = [served.get("/livez", headers={"x-request-id": each}).headers["x-request-id"] for each in given]

    assert ids[0] == "a.b-1"
    assert all(len(each) == 32 for each in ids[1:])


def test_log_has_one_line_for_each_request_and_no_text(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """A line is JSON with the id, the caller and the counts, or the code of the error; no prompt, answer or key is in it."""
    secret = {**CHAT, "messages": [{"role": "user", "content": "xyzzy: what is the best dish of Miami?"}]}
    with caplog.at_level(logging.INFO, "promptcache.server"), served.http() as client:
        client.get("/livez", headers={"x-request-id": "zero"})
        wait_until(lambda: "zero" in caplog.text)
        caplog.clear()  # lines of requests before this test
        client.post(CHATS, json=secret, headers={"x-request-id": "one"})
        client.post(CHATS, json={**secret, "temperature": "xyzzy"}, headers={"x-request-id": "two"})
        wait_until(lambda: "two" in caplog.text)  # a line is written after its answer

    lines = [json.loads(each.message) for each in caplog.records if each.name == "promptcache.server"]
    assert [(each["id"], each["status"]) for each in lines] == [("one", 200), ("two", 400)]
    assert lines[0]["completion_tokens"] > 0
    assert lines[1]["error"] == "invalid_value"
    assert {(len(each["caller"]), each["time"][-6:]) for each in lines} == {(12, "+00:00")}
    assert not any(word in caplog.text for word in ("xyzzy", "crab", "alice"))


def test_files_of_keys(tmp_path: Path) -> None:
    """A key a line; comments and empty lines are skipped; a file that has no valid keys, or is not UTF-8, is refused."""
    path = tmp_path / "keys"
    path.write_text("# two\n\nalice\n  bob \n", encoding="utf-8")

    assert read_keys(path) == digests(["alice", "bob"])
    for text in ("", "# none\n", "two words\n", "clé\n", "del\x7f\n"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InvalidValue, match="keys"):
            read_keys(path)
    path.write_bytes(b"alice\nkey\xff\n")
    with pytest.raises(InvalidValue, match="keys: byte 0xff in line 2 is not UTF-8; save the file as UTF-8"):
        read_keys(path)


HOSTS = {
    "localhost:8000": 200,
    "LOCALHOST": 200,
    "a.localhost": 200,
    "127.0.0.1:8000": 200,
    "[::1]:8000": 200,
    "192.0.2.7": 200,
    "Gpu.example:8000": 200,
    "evil.example": 403,
    "evil.example:8000": 403,
    "localhost.evil.example": 403,
    "127.0.0.1.evil.example": 403,
    "localhost@evil.example": 403,
    "evil.example#localhost": 403,
}


def test_without_keys_only_own_names_are_served(
    engine: Engine, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the name of another site only health answers, so its pages cannot read any; with keys any name is served."""
    app = scripted(engine, ScriptedService(), monkeypatch, allow_host=["gpu.example"])

    async def ask(client: httpx.AsyncClient) -> dict[str, int]:
        assert (await client.get("/health", headers={"host": "evil.example"})).status_code == 200
        return {each: (await client.get("/v1/models", headers={"host": each})).status_code for each in HOSTS}

    assert in_process(app, ask) == HOSTS
    assert served.get("/v1/models", headers={"host": "api.example"}).status_code == 200


ORIGINS = [
    (["https://app.example"], "https://app.example", "https://app.example"),
    (["https://app.example"], "https://evil.example", None),
    (["*"], "https://app.example", "*"),
    ([], "https://app.example", None),
]


def test_pages_of_allowed_origins_read_answers(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser may send a chat with a key, and read the answer, a refusal and the request ID, from these pages only."""
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    for allowed, origin, header in ORIGINS:

        async def ask(client: httpx.AsyncClient, origin: str = origin) -> list[httpx.Response]:
            client.headers["origin"] = origin
            return [
                await client.options(CHATS, headers=asked),
                await client.post(CHATS, json={}, headers={"authorization": "Bearer alice"}),
                await client.post(CHATS, json={}),
            ]

        app = scripted(engine, ScriptedService(), monkeypatch, keys=KEYS, allow_origin=allowed)
        preflight, refused, unknown = found = in_process(app, ask)
        assert (refused.status_code, unknown.status_code) == (400, 401)
        assert [each.headers.get("access-control-allow-origin") for each in found] == [header] * 3
        assert (preflight.status_code == 200) == (header is not None)
        if header is not None:
            assert preflight.headers["access-control-allow-headers"] == "authorization,content-type"
            assert "x-request-id" in refused.headers["access-control-expose-headers"]


ADMINS, METRICS = digests(["root"]), digests(["graphs"])


MAY: dict[str, tuple[ApiKeys, dict[str | None, tuple[int, int, int]]]] = {
    "admins only": (ApiKeys(admins=ADMINS), {None: (200, 403, 200), "any": (200, 403, 200), "root": (200, 200, 200)}),
    "all": (
        ApiKeys(clients=digests(["alice"]), admins=ADMINS, metrics=METRICS),
        {"alice": (200, 403, 403), "root": (200, 200, 200), "graphs": (401, 401, 200), "eve": (401, 401, 401)},
    ),
}


@pytest.mark.parametrize("which", MAY)
def test_what_keys_may_do(engine: Engine, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    """Without keys of clients they need none. Changes need an admin key; a key for metrics reads what others do, only."""
    keys, expected = MAY[which]
    app = scripted(engine, ScriptedService(), monkeypatch, keys=keys)

    async def ask(client: httpx.AsyncClient) -> dict[str | None, tuple[int, ...]]:
        found = {}
        for key in expected:
            client.headers = httpx.Headers({"authorization": f"Bearer {key}"} if key else {})
            answers = [await client.get("/v1/models"), await client.post("/v1/schemas/travel/warm")]
            found[key] = tuple(each.status_code for each in (*answers, await client.get("/metrics")))
        return found

    assert in_process(app, ask) == expected


def test_the_soft_limit_of_files_is_raised_and_a_low_hard_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections and the files of the store fit; otherwise the message has both numbers."""
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))

    raise_file_limit(512)
    with pytest.raises(InvalidValue, match=r"^1000 connections need 1381 open files, and this process may have 1000 "):
        raise_file_limit(1000)

    assert raised == [(1000, 1000)]


def test_a_store_with_more_files_than_the_limit_is_warmed(engine: Engine, tmp_path: Path) -> None:
    """What is stored is read from one file after another, so the limit of open files does not limit the store."""
    modules = "".join(f'<module name="m{number}">{number}</module>' for number in range(40))

    def started() -> Engine:
        made = Engine(
            engine.model, engine.tokenizer, store=open_store(StoreConfig(folder=tmp_path), engine.model.shape)
        )
        made.add_schema(f'<schema name="s"><union>{modules}</union></schema>')
        return made

    (first,) = started().warm()
    again = started()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 20, hard))
    try:
        (second,) = again.warm()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert (first.num_encoded, second.num_encoded, second.faults) == (first.num_encodings, 0, ())
    assert first.num_encodings > 40
