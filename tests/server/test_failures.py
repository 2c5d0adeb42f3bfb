"""Planted failures behind a server: the request that meets one fails, in a form that OpenAI's client understands."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch

from promptcache import Engine
from promptcache.decode import Service
from promptcache.diagnostics import QueueFull, ServiceClosed
from promptcache.kv import StoreConfig, open_store
from promptcache.rows.batch import Batch
from promptcache.server import ServerSettings, create_app
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tests.laws.faults import FaultyStore, LosingStore, RefusingStore, always
from tests.server.conftest import (
    CHAT,
    CHATS,
    QUESTION,
    TRAVEL,
    ScriptedService,
    Served,
    answers,
    choices,
    held_steps,
    in_process,
    running,
    scripted,
    wait_until,
)
from tests.server.test_metrics import values

ANSWER = "The best dish of Miami is stone crab."
ASK: dict[str, Any] = {
    "model": "demo@travel",
    "messages": [QUESTION],
    "temperature": 0,
    "extra_body": {"prompt_cache": {"use": ["miami"]}},
}


@pytest.mark.parametrize(
    ("errors", "num_asked"),
    [
        ((QueueFull("full", "queue_full"), ServiceClosed("ends", "draining")), 3),
        ((ServiceClosed("dead", "worker_dead"),), 1),
    ],
)
def test_clients_ask_again_as_the_server_says(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, errors: tuple[Exception, ...], num_asked: int
) -> None:
    """OpenAI's client waits for a full queue and for a server that ends, and does not ask a dead worker again."""
    made = engine.generate('<prompt schema="travel"><miami/><user>What?</user></prompt>', max_new_tokens=3)
    service = ScriptedService(*made.token_ids, made, errors=errors)
    refused = pytest.raises(openai.InternalServerError) if num_asked == 1 else nullcontext()
    for server in running(scripted(engine, service, monkeypatch)):
        with refused:
            assert server.openai().with_options(max_retries=2).chat.completions.create(**ASK).choices[0].finish_reason

    assert len(service.asked) == num_asked
    assert all(later - earlier >= 1 for earlier, later in pairwise(service.asked))


def test_a_client_that_waits_no_longer_frees_its_row(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit of the client is its own error, and the request is cancelled here."""
    service = ScriptedService(threading.Event())
    for server in running(scripted(engine, service, monkeypatch)):
        with pytest.raises(openai.APITimeoutError):
            server.openai().with_options(timeout=0.2).chat.completions.create(**ASK)
        assert service.cancelled.wait(5)


@pytest.mark.parametrize("stream", [False, True])
def test_logits_that_are_not_finite_are_an_error_of_the_server(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """NaN in the second step is 500, or the last event of a stream; the next request on the connection is answered."""
    step, broken = Batch.step, []

    def poisoned(self: Batch, work: Any, **kwargs: Any) -> torch.Tensor:
        logits = step(self, work, **kwargs)
        broken.append(self)
        return logits * torch.nan if len(broken) == 2 else logits

    monkeypatch.setattr(Batch, "step", poisoned)
    for server in running(create_app(engine)):
        client = server.openai()
        for _ in range(3):
            with pytest.raises(openai.APIError, match="computes the logits of this request as infinities or NaN"):
                list(client.chat.completions.create(**ASK, stream=stream))
            assert client.chat.completions.create(**ASK).choices[0].message.content == ANSWER
            broken.clear()


@pytest.mark.parametrize("kind", [LosingStore, RefusingStore])
def test_a_store_that_fails_costs_no_answer(engine: Engine, kind: type[FaultyStore]) -> None:
    """Answers are the same over a store that finds nothing again, and over one that refuses everything."""
    failing = Engine(engine.model, engine.tokenizer, store=kind(open_store(None, engine.model.shape), always))
    failing.add_schema(TRAVEL)

    for made in answers(create_app(failing), CHAT, CHAT):
        assert choices(made)[0][0] == ANSWER
        assert made.json()["prompt_cache"]["num_encoded_tokens"] > 0


def test_faults_of_the_store_are_counted(engine: Engine, tmp_path: Path) -> None:
    """A folder that cannot be read or written costs no answer, and the metrics count it."""
    store = StoreConfig(folder=tmp_path / "file" / "under", memory_bytes=0)
    (tmp_path / "file").write_text("", encoding="utf-8")
    faulty = Engine(engine.model, engine.tokenizer, store=store)
    faulty.add_schema(TRAVEL)
    app = create_app(faulty)
    (made,) = answers(app, CHAT)

    assert choices(made)[0][0] == ANSWER
    assert values(app.state.server.metrics.text().decode())["store_faults_total"] > 0


@pytest.mark.parametrize("jump_s", [-1e6, 1e6])
def test_a_jump_of_the_clock_changes_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    """Time limits do not go by the time of day: no request ends because somebody sets the clock."""
    now = time.time

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        body = {**CHAT, "min_tokens": 20, "max_tokens": 20}
        running = [asyncio.create_task(client.post(CHATS, json=body)) for _ in range(3)]
        await asyncio.sleep(0.05)
        monkeypatch.setattr(time, "time", lambda: now() + jump_s)
        return [*(await asyncio.gather(*running)), await client.post(CHATS, json=CHAT)]

    settings = ServerSettings(max_rows=1, queue_timeout_s=60, request_timeout_s=60)
    found = in_process(create_app(engine, settings), ask)

    assert [each.status_code for each in found] == [200] * 4


@pytest.fixture
def busy(engine: Engine) -> Iterator[Served]:
    """A server with two rows that drains for a long or short time."""
    settings = ServerSettings(max_rows=2, max_new_tokens=3000, drain_s=30, request_timeout_s=60)
    yield from running(create_app(engine, settings))


def _is_taken(server: Served, number: int) -> bool:
    counts = server.state.service.counts
    return counts.num_running + counts.num_waiting == number


def streams(server: Served, number: int, max_tokens: int) -> list[Future[str]]:
    """Ask for streams at once, and return their texts as futures."""
    body = {**CHAT, "stream": True, "min_tokens": max_tokens, "max_tokens": max_tokens}

    def ask() -> str:
        with server.http() as client:
            return client.post(CHATS, json=body).text

    threads = ThreadPoolExecutor(number)
    found = [threads.submit(ask) for _ in range(number)]
    threads.shutdown(wait=False)
    return found


def test_sigterm_under_load_answers_what_was_taken(busy: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that run and that wait are answered to their end, and new ones are refused."""
    go_on = held_steps(monkeypatch)
    found = streams(busy, 6, 40)
    wait_until(partial(_is_taken, busy, 6))
    busy.server.handle_exit(signal.SIGTERM, None)
    wait_until(lambda: busy.state.draining)
    with busy.http() as client:
        refused = client.post(CHATS, json=CHAT)
    go_on.set()

    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
    assert all(each.result(30).endswith("data: [DONE]\n\n") for each in found)


def test_sigterm_ends_what_takes_too_long(engine: Engine) -> None:
    """After the time to drain the rest ends with an error that says why, and so does the server."""
    settings = ServerSettings(max_rows=2, max_new_tokens=3000, drain_s=0.1)
    for server in running(create_app(engine, settings)):
        found = streams(server, 3, 3000)
        wait_until(partial(_is_taken, server, 3))
        server.server.handle_exit(signal.SIGTERM, None)
        texts = [each.result(30) for each in found]

    assert not any("[DONE]" in each for each in texts)
    assert all('"code":"draining"' in each for each in texts)


def test_all_answers_to_a_prompt_are_of_one_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """A schema that is replaced while the rows of a request are queued changes none of them."""
    engine = Engine(tiny_model(), ByteTokenizer())
    old, other = (
        f'<schema name="s"><module name="a">{text}</module></schema>' for text in ("Old text.", "Another one.")
    )
    engine.add_schema(old)
    body = {"model": "tiny", "messages": [QUESTION], "temperature": 0, "max_tokens": 8, "n": 3}
    body["prompt_cache"] = {"schema": "s", "use": ["a"]}
    submit = Service.submit_request

    def replacing(self: Service, *args: Any) -> Any:
        engine.add_schema(other)
        return submit(self, *args)

    async def ask(client: httpx.AsyncClient) -> list[list[str]]:
        found = []
        for each in (submit, replacing, submit):
            monkeypatch.setattr(Service, "submit_request", each)
            made = (await client.post(CHATS, json=body)).json()["choices"]
            found.append([choice["message"]["content"] for choice in made])
        return found

    before, meanwhile, after = in_process(create_app(engine, ServerSettings(served_model_name="tiny")), ask)

    assert meanwhile == before
    assert after != before
