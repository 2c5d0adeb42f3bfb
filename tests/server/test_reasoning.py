"""Reasoning in answers of the server: `reasoning_content`, apart from `content`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from promptcache.engine import Engine
from tests.engine.test_reasoning import KEEPS, SAID, engine_of, saying
from tests.server.conftest import ScriptedService, in_process, scripted

CHAT = [{"role": "user", "content": "What is the best dish of Miami?"}]


@pytest.fixture(scope="module", params=[False, True], ids=["written by the model", "opened by the prompt"])
def asked(request: pytest.FixtureRequest) -> tuple[Engine, Sequence[object]]:
    """An engine whose model reasons, and what its service says."""
    engine, _ = engine_of(KEEPS, is_open=request.param)
    found = engine.generate(CHAT, **saying(engine, SAID.removeprefix("<think>\n") if request.param else SAID))
    return engine, (*found.token_ids, found)


def answered(asked: tuple[Engine, Sequence[object]], monkeypatch: pytest.MonkeyPatch, **body: Any) -> httpx.Response:
    """Return the response to a chat."""
    engine, script = asked
    app = scripted(engine, ScriptedService(*script), monkeypatch)

    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/chat/completions", json={"model": "demo", "messages": CHAT, **body})

    return in_process(app, ask)


def test_a_message_has_its_reasoning_apart(
    asked: tuple[Engine, Sequence[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The content is the answer alone."""
    (choice,) = answered(asked, monkeypatch).json()["choices"]

    assert choice["message"]["content"] == "Ceviche."
    assert choice["message"]["reasoning_content"] == "Many."


def test_a_stream_has_its_reasoning_apart(
    asked: tuple[Engine, Sequence[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pieces add up to the message, the reasoning first."""
    lines = answered(asked, monkeypatch, stream=True).text.split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line and line != "data: [DONE]"]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]

    assert "".join(each.get("content", "") for each in deltas) == "Ceviche."
    assert "".join(each.get("reasoning_content", "") for each in deltas) == "Many."
    reasoning, content = (
        [index for index, each in enumerate(deltas) if each.get(name)] for name in ("reasoning_content", "content")
    )
    assert reasoning[-1] < content[0]


def test_stop_texts_count_in_reasoning_too(
    asked: tuple[Engine, Sequence[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that stops in its reasoning has no content."""
    (choice,) = answered(asked, monkeypatch, stop=["ny"]).json()["choices"]

    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning_content"] == "Ma"
    assert choice["finish_reason"] == "stop"


def test_reasoning_that_is_given_back_reaches_the_template(
    asked: tuple[Engine, Sequence[object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client sends an answer as it got it."""
    (choice,) = answered(asked, monkeypatch).json()["choices"]
    chat = [*CHAT, choice["message"], {"role": "user", "content": "Where?"}]

    response = answered(asked, monkeypatch, messages=chat)

    assert response.status_code == 200
    plan = asked[0].plan(chat)
    assert "<think>\nMany.\n</think>\n\nCeviche." in asked[0].tokenizer.detokenize(plan.tokens.used_ids)
