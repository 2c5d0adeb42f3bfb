"""Reasoning in answers of the server: `reasoning_content`, apart from `content`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from promptcache.engine import Engine
from tests.engine.test_reasoning import KEEPS, SAID, engine_of, saying
from tests.server.conftest import QUESTION, ScriptedService, answers, events, scripted

Ask = Callable[..., httpx.Response]


@pytest.fixture(scope="module", params=[False, True], ids=["written by the model", "opened by the prompt"])
def reasoner(request: pytest.FixtureRequest) -> tuple[Engine, Sequence[object]]:
    """An engine whose model reasons, and what its service says."""
    engine, _ = engine_of(KEEPS, is_open=request.param)
    found = engine.generate([QUESTION], **saying(engine, SAID.removeprefix("<think>\n") if request.param else SAID))
    return engine, (*found.token_ids, found)


@pytest.fixture
def ask(reasoner: tuple[Engine, Sequence[object]], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Return a function that asks for a chat."""

    def asked(**body: Any) -> httpx.Response:
        app = scripted(reasoner[0], ScriptedService(*reasoner[1]), monkeypatch)
        return answers(app, {"model": "demo", "messages": [QUESTION], **body})[0]

    return asked


def test_an_answer_has_its_reasoning_apart(reasoner: tuple[Engine, Sequence[object]], ask: Ask) -> None:
    """The content is the answer alone. A client that sends it back gives the template its reasoning."""
    message = ask().json()["choices"][0]["message"]
    chat = [QUESTION, message, {"role": "user", "content": "Where?"}]

    assert (message["content"], message["reasoning_content"]) == ("Ceviche.", "Many.")
    assert ask(messages=chat).status_code == 200
    used_ids = reasoner[0].plan(chat).tokens.used_ids
    assert "<think>\nMany.\n</think>\n\nCeviche." in reasoner[0].tokenizer.detokenize(used_ids)


def test_a_stream_has_its_reasoning_first(ask: Ask) -> None:
    """The pieces add up to the message."""
    deltas = [choice["delta"] for event in events(ask(stream=True).text) for choice in event["choices"]]
    said = {
        name: [(place, each[name]) for place, each in enumerate(deltas) if each.get(name)]
        for name in ("reasoning_content", "content")
    }

    assert ["".join(text for _, text in each) for each in said.values()] == ["Many.", "Ceviche."]
    assert said["reasoning_content"][-1][0] < said["content"][0][0]


def test_stop_texts_count_in_reasoning_too(ask: Ask) -> None:
    """An answer that stops in its reasoning has no content."""
    (choice,) = ask(stop=["ny"]).json()["choices"]

    assert (choice["message"]["content"], choice["message"]["reasoning_content"]) == ("", "Ma")
    assert choice["finish_reason"] == "stop"
