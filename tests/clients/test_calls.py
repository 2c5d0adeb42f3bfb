"""Clients of the API of OpenAI as they are: each call is answered, or refused with what to do instead."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from promptcache import Engine
from promptcache.server import ServerSettings, create_app
from tests.clients.calls import CALLS, MESSAGES, MODEL, OPTIONS, TEXT
from tests.engine.calling import HERMES, engine_of
from tests.server.conftest import KEYS, TRAVEL, Served, running

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the clients

ROOT = Path(__file__).parents[2]
INSTALLED = ROOT / ".clients"

REFUSED: Mapping[str, str] = {
    "images": r"messages[0].content[0].type='image_url' is not supported: only parts of type 'text' are",
    "image blocks": "messages[0].content[0].type='image' is not supported: blocks of type",
    "embeddings.create": "this server has no embeddings",
    "thinking": "'thinking' is not supported by this server; leave it out",
}
"""The calls that are refused, with a part of the message that the client shows."""

WITH_TOOLS = {
    *("tools", "tools(stream=True)", "bind_tools", "responses with tools", "structured_predict", "Mode.TOOLS"),
    *("FunctionAgent", "generateText with tools"),
}
"""Calls with tools, which the chat template must write."""

OTHER_PROMPTS = {"Mode.JSON", "Mode.MD_JSON", "generateText of a completionModel", "streamText of a completionModel"}
"""Calls whose client writes another prompt, so that the answer differs."""

FORMED_ANSWERS = ("stone crab", "onion soup", "look_up")
"""What answers with a form have: the dish of `Dish`, or the name of the tool."""

AI_SDK = (
    "generateText",
    "streamText",
    "generateText with messages",
    "generateText of a completionModel",
    "streamText of a completionModel",
    "generateText of openai.chat",
    "generateText of openai (responses)",
    "generateText with tools",
    "generateObject",
)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A server with the demo model."""
    engine = Engine.from_pretrained("demo")
    engine.add_schema(TRAVEL)
    yield from running(create_app(engine, ServerSettings(model=MODEL, keys=KEYS)))


@pytest.fixture(scope="module")
def with_tools() -> Iterator[Served]:
    """A server with the demo model, and a chat template that writes tools."""
    yield from running(create_app(engine_of(HERMES)[0], ServerSettings(model=MODEL, keys=KEYS)))


@pytest.fixture(scope="module")
def answers(served: Served) -> set[str]:
    """What the server itself answers, without a client."""
    with served.http() as http:
        chat = http.post("/v1/chat/completions", json={"messages": MESSAGES, **OPTIONS}).json()
        text = http.post("/v1/completions", json={"prompt": TEXT, **OPTIONS}).json()
    return {
        chat["choices"][0]["message"]["content"],
        text["choices"][0]["text"],
        "The best dish of Miami is stone crab.",
    }


@pytest.mark.parametrize(
    ("client", "name"), [(client, name) for client, calls in CALLS.items() for name in calls], ids=str
)
def test_a_call_is_answered_or_refused(
    served: Served, with_tools: Served, answers: set[str], client: str, name: str
) -> None:
    """An answer is that of the server, and a refusal says what is not supported."""
    call = CALLS[client][name]
    url = f"{(with_tools if name in WITH_TOOLS else served).url}/v1"
    if name in REFUSED:
        with pytest.raises(Exception, match=re.escape(REFUSED[name])):
            call(url)
    else:
        assert is_answer(name, call(url), answers)


def is_answer(name: str, text: str, answers: set[str]) -> bool:
    """Return whether a text is what a call should return."""
    return bool(text) and (name in OTHER_PROMPTS or text in {*answers, MODEL, *FORMED_ANSWERS})


@pytest.fixture(scope="module")
def ai_sdk(served: Served, with_tools: Served) -> Mapping[str, Mapping[str, Any]]:
    """The results of the calls of the AI SDK; `make test-clients` installs it where npm is."""
    node = shutil.which("node")
    if node is None or not (INSTALLED / "node_modules" / "ai").is_dir():
        pytest.skip("needs node, and the AI SDK in .clients/node_modules")
    script = shutil.copy(Path(__file__).with_name("ai_sdk.mjs"), INSTALLED)
    ran = subprocess.run(
        [node, script, f"{served.url}/v1", f"{with_tools.url}/v1"],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    results: dict[str, dict[str, Any]] = json.loads(ran.stdout)
    assert tuple(results) == AI_SDK
    return results


@pytest.mark.parametrize("name", AI_SDK)
def test_a_call_of_the_ai_sdk_is_answered_or_refused(
    ai_sdk: Mapping[str, Mapping[str, Any]], answers: set[str], name: str
) -> None:
    """As for the clients in Python."""
    result = ai_sdk[name]
    if name in REFUSED:
        assert REFUSED[name] in result["error"]
    else:
        assert is_answer(name, result["text"], answers), result


def test_the_table_of_the_page() -> None:
    """docs/serving.md names each call of each client, under what becomes of it."""
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    table = page.partition("| client | answered | refused |\n|---|---|---|\n")[2].partition("\n\n")[0]
    rows = {cells[1].strip(" `"): cells[2:4] for cells in (line.split("|") for line in table.splitlines())}
    calls = {**CALLS, "AI SDK": dict.fromkeys(AI_SDK)}

    assert rows.keys() == calls.keys()
    for client, (answered, refused) in rows.items():
        assert re.findall(r"`([^`]+)`", answered) == [each for each in calls[client] if each not in REFUSED], client
        assert re.findall(r"`([^`]+)`", refused) == [each for each in calls[client] if each in REFUSED], client
