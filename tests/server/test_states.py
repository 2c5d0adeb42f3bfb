"""A real service behind the server: starting, full, and dead."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest

from promptcache import Engine
from promptcache.runtime import ServiceLimits
from promptcache.server import ServerSettings, create_app
from tests.server.conftest import CHAT, held_steps, in_process


def test_requests_are_refused_until_schemas_are_encoded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """While schemas are encoded, health and requests are 503; afterwards both are 200."""
    encoded = threading.Event()
    monkeypatch.setattr(engine, "warm", lambda *_, **__: [] if encoded.wait(10) else None)
    app = create_app(engine, ServerSettings(model="demo"))

    async def run() -> list[httpx.Response]:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
        ):
            early = [await client.get("/health"), await client.post("/v1/chat/completions", json=CHAT)]
            encoded.set()
            while (await client.get("/health")).status_code != 200:
                await asyncio.sleep(0.01)
            return [*early, await client.post("/v1/chat/completions", json=CHAT)]

    health, refused, answered = asyncio.run(run())

    assert (health.status_code, health.json()) == (503, {"status": "starting"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "starting")
    assert answered.status_code == 200


def test_full_queue_is_429_and_others_are_answered(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many requests at once, those beyond the queue are refused, and all others are answered."""
    limits = ServiceLimits(max_rows=1, max_waiting=2)
    go_on = held_steps(monkeypatch)

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        posts = [asyncio.create_task(client.post("/v1/chat/completions", json=CHAT)) for _ in range(12)]
        await asyncio.wait(posts, return_when=asyncio.FIRST_COMPLETED)  # the first answer is a refusal
        go_on.set()
        return await asyncio.gather(*posts)

    found = in_process(create_app(engine, ServerSettings(model="demo", limits=limits)), ask)
    refused = [each for each in found if each.status_code == 429]

    assert 0 < len(refused) < len(found)
    assert {each.json()["error"]["code"] for each in refused} == {"queue_full"}
    assert {each.status_code for each in found} == {200, 429}


def test_answers_of_one_request_fit_into_an_idle_queue_or_are_a_bad_request(engine: Engine) -> None:
    """`n` up to `max_waiting` is answered by an idle server; more is 400 with both numbers, not 429."""
    limits = ServiceLimits(max_rows=2, max_waiting=3)

    async def ask(client: httpx.AsyncClient) -> tuple[list[httpx.Response], str]:
        found = [await client.post("/v1/chat/completions", json={**CHAT, "n": count}) for count in (3, 4)]
        return found, (await client.get("/metrics")).text

    (answered, refused), metrics = in_process(create_app(engine, ServerSettings(model="demo", limits=limits)), ask)

    assert (answered.status_code, len(answered.json()["choices"])) == (200, 3)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, "invalid_value", "n")
    assert error["message"] == "n=4 is more than 3, the limit of this server"
    assert "retry-after" not in refused.headers
    assert "promptcache_rejected_total{" not in metrics


def test_failing_forward_passes_end_the_worker(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of a step that fails get 500; after three such steps health is 503, and requests are refused at once."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("secret: no memory")

    async def ask(client: httpx.AsyncClient) -> list[httpx.Response]:
        monkeypatch.setattr(type(engine.model), "forward", fail)
        found = [await client.post("/v1/chat/completions", json=CHAT) for _ in range(3)]
        for _ in range(3000):
            if (await client.get("/health")).status_code == 503:
                break
            await asyncio.sleep(0.02)
        posted = await client.post("/v1/chat/completions", json=CHAT)
        return [*found, posted, *[await client.get(path) for path in ("/health", "/livez", "/metrics")]]

    *failed, refused, health, alive, metrics = in_process(create_app(engine, ServerSettings(model="demo")), ask)

    assert [each.status_code for each in failed] == [500] * 3
    assert not any("secret" in each.text for each in failed)
    assert (health.status_code, health.json(), alive.status_code) == (503, {"status": "worker_dead"}, 200)
    assert 'promptcache_rejected_total{reason="worker_dead"} 1.0' in metrics.text
    assert (refused.status_code, refused.headers["x-should-retry"]) == (503, "false")
