"""Errors and planted failures of the service: each has a status, or is the last event of a stream, for OpenAI's client."""

import asyncio
import json
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
from promptcache.diagnostics import EngineClosed, QueueFull, QueueTimeout, ServiceClosed
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


@pytest.mark.parametrize(
    ("error", "status", "code", "header"),
    [
        (QueueFull("full", "queue_full"), 429, "queue_full", ("retry-after", "1")),
        (QueueFull("full", "queue_tokens_full"), 429, "queue_tokens_full", ("retry-after", "1")),
        (QueueTimeout("waited"), 408, "queue_timeout", ("retry-after", "1")),
        (ServiceClosed("ends", "draining"), 503, "draining", ("retry-after", "1")),
        (ServiceClosed("dead", "worker_dead"), 503, "worker_dead", ("x-should-retry", "false")),
        (EngineClosed("closed"), 503, "engine_closed", ("x-should-retry", "false")),
        (ZeroDivisionError("secret"), 500, "internal_error", ("content-type", "application/json")),
    ],
    ids=lambda each: str(each)[:20],
)
def test_refusals_of_the_service(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, code: str, header: tuple[str, str]
) -> None:
    """A refusal of the service, or an error before the first token, has a status, also of a stream."""
    soon = threading.Event()
    soon.set()
    for script in ((error,), (soon, error)):
        app = scripted(engine, ScriptedService(*script), monkeypatch)
        for response in answers(app, CHAT, {**CHAT, "stream": True}):
            assert (response.status_code, response.json()["error"]["code"]) == (status, code)
            assert response.headers[header[0]] == header[1]
            assert "secret" not in response.text


def test_error_in_a_stream_is_its_last_event(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first token an error is an event, for which the client raises; there is no [DONE]."""
    app = scripted(engine, ScriptedService(265, 2757, RuntimeError("secret")), monkeypatch)
    for server in running(app):
        with pytest.raises(openai.APIError, match="the log of the server"):
            list(server.openai().chat.completions.create(model="demo", messages=[QUESTION], stream=True))
        text = server.post(CHATS, {**CHAT, "stream": True}).text
        last = server.post("/v1/responses", {"model": "demo", "input": "Hi", "stream": True}).text.rpartition("data: ")

    assert "[DONE]" not in text
    assert "secret" not in text
    event = json.loads(last[2])
    assert (event["type"], event["code"]) == ("error", "internal_error")


@pytest.mark.parametrize(
    ("limits", "fits", "others"),
    [
        ({"max_waiting_tokens": 50}, 1, {"n": 4, "prompt": 5}),
        ({"max_rows": 2, "max_waiting": 3}, 3, {"n": 4}),
    ],
    ids=["tokens", "rows"],
)
def test_answers_that_could_never_wait_together_are_refused_for_good(
    engine: Engine, limits: dict[str, Any], fits: int, others: dict[str, int]
) -> None:
    """All rows of a request have to fit into an idle queue together: 429 would be repeated for ever."""
    app = create_app(engine, ServerSettings(**limits))
    asked = [{**CHAT, "n": n, "max_tokens": 20} for n in (fits, others["n"])]
    prompts = {"model": "demo", "prompt": ["a", "b" * 40, "c", "d", "e"], "max_tokens": 20}

    async def ask(client: httpx.AsyncClient) -> tuple[list[httpx.Response], str]:
        found = [await client.post(CHATS, json=each) for each in asked]
        found += [await client.post("/v1/completions", json=prompts)] if "prompt" in others else []
        return found, (await client.get("/metrics")).text

    (answered, *refused), metrics = in_process(app, ask)

    assert len(choices(answered, fits)) == fits
    assert [(each.status_code, each.json()["error"]["param"]) for each in refused] == [(400, each) for each in others]
    said = (
        "are more than 50 that may wait" if "max_waiting_tokens" in limits else "n=4 is more than 3, the limit of this"
    )
    assert all(said in each.json()["error"]["message"] and "retry-after" not in each.headers for each in refused)
    assert "promptcache_rejected_total{" not in metrics


def test_streams_have_no_line_ends_of_unicode(engine: Engine) -> None:
    """Clients that cut lines as Python does get whole events."""
    asked = {"model": "demo", "prompt": "The \u2028 \u2028 \u2028 \u2028", "temperature": 0, "max_tokens": 30}
    app = create_app(engine)
    whole, stream = answers(app, asked, {**asked, "stream": True}, path="/v1/completions")
    events = [json.loads(line.removeprefix("data: ")) for line in stream.text.splitlines()[:-2] if line]

    assert "\u2028" in choices(whole)[0][0]
    assert "".join(each["choices"][0]["text"] for each in events) == choices(whole)[0][0]


def test_request_timeout(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that takes too long is 408, and its row is cancelled."""
    service = ScriptedService(threading.Event())
    started = time.perf_counter()
    (response,) = answers(scripted(engine, service, monkeypatch, request_timeout_s=0.1), CHAT)

    assert (response.status_code, response.json()["error"]["code"]) == (408, "request_timeout")
    assert response.headers["x-should-retry"] == "false"  # another attempt takes as long
    assert service.cancelled.is_set()
    assert time.perf_counter() - started < 5


def test_slow_readers_are_those_of_streams(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream with too many unread tokens ends with the reason before them; whole answers have no such limit."""
    monkeypatch.setattr("promptcache.server.respond.MAX_UNREAD", 0)
    whole, stream = answers(create_app(engine), CHAT, {**CHAT, "stream": True})

    assert (whole.status_code, stream.status_code) == (200, 408)
    assert stream.json()["error"]["code"] == "client_too_slow"


def test_requests_are_refused_until_schemas_are_encoded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """While schemas are encoded, health and requests are 503; afterwards both are 200."""
    encoded = threading.Event()
    monkeypatch.setattr(engine, "warm", lambda *_, **__: [] if encoded.wait(10) else None)
    app = create_app(engine)

    async def run() -> list[httpx.Response]:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
        ):
            early = [await client.get("/health"), await client.post(CHATS, json=CHAT)]
            encoded.set()
            while (await client.get("/health")).status_code != 200:
                await asyncio.sleep(0.01)
            return [*early, await client.post(CHATS, json=CHAT)]

    health, refused, answered = asyncio.run(run())

    assert (health.status_code, health.json()) == (503, {"status": "starting"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "starting")
    assert answered.status_code == 200


def test_full_queue_is_429_and_others_are_answered(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many requests at once, those beyond the queue are refused, and all others are answered."""
    go_on = held_steps(monkeypatch)

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        posts = [asyncio.create_task(client.post(CHATS, json=CHAT)) for _ in range(12)]
        await asyncio.wait(posts, return_when=asyncio.FIRST_COMPLETED)  # the first answer is a refusal
        go_on.set()
        return await asyncio.gather(*posts)

    found = in_process(create_app(engine, ServerSettings(max_rows=1, max_waiting=2)), ask)

    assert {each.status_code for each in found} == {200, 429}
    assert {each.json()["error"]["code"] for each in found if each.status_code == 429} == {"queue_full"}


def test_failing_forward_passes_end_the_worker(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of a step that fails get 500 and are counted; after three, health is 503, and requests are refused."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("secret: no memory")

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        monkeypatch.setattr(type(engine.model), "forward", fail)
        found = [await client.post(CHATS, json=CHAT) for _ in range(3)]
        for _ in range(3000):
            if (await client.get("/health")).status_code == 503:
                break
            await asyncio.sleep(0.02)
        found.append(await client.post(CHATS, json=CHAT))
        return [*found, *[await client.get(path) for path in ("/health", "/livez", "/metrics")]]

    *failed, refused, health, alive, metrics = in_process(create_app(engine), ask)

    assert [each.status_code for each in failed] == [500] * 3
    assert not any("secret" in each.text for each in failed)
    assert (health.status_code, health.json(), alive.status_code) == (503, {"status": "worker_dead"}, 200)
    assert 'promptcache_rejected_total{reason="worker_dead"} 1.0' in metrics.text
    assert 'promptcache_requests_total{endpoint="chat",finish="error"} 3.0' in metrics.text
    found = values(metrics.text)
    assert (found["step_errors_total"], found["rejected_total"]) == (3, 1)
    assert (refused.status_code, refused.headers["x-should-retry"]) == (503, "false")
