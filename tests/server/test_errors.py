"""Errors of the service: refusals before the first token have a status, later errors are the last event of a stream."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from promptcache import Engine
from promptcache.diagnostics import EngineClosed, QueueFull, QueueTimeout, ServiceClosed
from promptcache.server import ServerSettings, create_app
from promptcache.server.errors import ApiError
from promptcache.server.events import MAX_UNREAD, RowEvents, RowItem
from tests.server.conftest import (
    CHAT,
    CHATS,
    QUESTION,
    ScriptedService,
    answers,
    choices,
    held_steps,
    in_process,
    running,
    scripted,
)


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


def test_slow_reader_is_cancelled() -> None:
    """A client that is too many tokens behind loses its row, and gets the reason before all other tokens."""
    service, tells = ScriptedService(), list[Callable[[RowItem], None]]()

    async def read_nothing() -> tuple[int, RowItem]:
        events = RowEvents(60, MAX_UNREAD)
        events.watch([service.submit_request("", lambda _: None)], asyncio.Event().wait)  # type: ignore[list-item,arg-type]
        tells.append(events.listener(0))
        for _ in range(MAX_UNREAD + 1):
            tells[0](2757)
        await asyncio.sleep(0.01)
        return await events.next()

    _, item = asyncio.run(read_nothing())
    tells[0](2757)

    assert isinstance(item, ApiError)
    assert item.code == "client_too_slow"
    assert service.cancelled.is_set()


def test_whole_answers_have_no_slow_reader(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of unread tokens is one of streams: the server itself collects an answer that it sends at once."""
    monkeypatch.setattr("promptcache.server.respond.MAX_UNREAD", 0)
    app = create_app(engine)

    assert [each.status_code for each in answers(app, CHAT, {**CHAT, "stream": True})] == [200, 408]


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
    """Requests of a step that fails get 500; after three such steps health is 503, and requests are refused at once."""

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
    assert (refused.status_code, refused.headers["x-should-retry"]) == (503, "false")
