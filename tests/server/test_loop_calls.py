"""Calls from other threads into the event loop, and the objects that the server keeps out of garbage collections."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from promptcache import Engine
from promptcache.server import create_app, serve
from promptcache.server.events import LoopCalls
from promptcache.server.run import DrainingServer

_NUM_THREADS, _NUM_CALLS = 4, 2000


@pytest.mark.parametrize("num_rounds", [1, 3])
def test_calls_of_each_thread_run_in_order(num_rounds: int) -> None:
    """Every call from several threads runs once, in the event loop, and those of a thread in their order."""
    found: list[tuple[int, int]] = []

    async def run() -> None:
        calls, loop_thread = LoopCalls(), threading.get_ident()

        def called(thread: int, number: int) -> None:
            assert threading.get_ident() == loop_thread
            found.append((thread, number))

        def add_all(thread: int) -> None:
            for number in range(_NUM_CALLS):
                calls.add(called, thread, number)

        for finished in range(num_rounds):
            await asyncio.gather(*(asyncio.to_thread(add_all, thread) for thread in range(_NUM_THREADS)))
            async with asyncio.timeout(10):
                while len(found) < (finished + 1) * _NUM_THREADS * _NUM_CALLS:
                    await asyncio.sleep(0.001)

    asyncio.run(run())

    for thread in range(_NUM_THREADS):
        assert [number for each, number in found if each == thread] == [*range(_NUM_CALLS)] * num_rounds


def test_calls_that_wait_take_one_wake_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens of one step wake the event loop once, and a call that fails keeps no other one from running."""
    found: list[int] = []

    async def run() -> int:
        loop, wake_ups = asyncio.get_running_loop(), 0
        wake = loop.call_soon_threadsafe
        loop.set_exception_handler(lambda _loop, _context: None)

        def counted(*args: object) -> asyncio.Handle:
            nonlocal wake_ups
            wake_ups += 1
            return wake(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        calls = LoopCalls()
        for number in range(32):
            calls.add(found.append, number)
            calls.add(lambda: 1 / 0)
        while len(found) < 32:
            await asyncio.sleep(0)
        return wake_ups

    assert asyncio.run(run()) == 1
    assert found == [*range(32)]


def test_calls_after_the_end_are_dropped() -> None:
    """A thread may add calls after the event loop was closed."""

    async def made() -> LoopCalls:
        return LoopCalls()

    calls = asyncio.run(made())
    calls.add(pytest.fail, "the event loop is closed")


def test_server_freezes_its_objects(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The objects of libraries and schemas take no part in the garbage collections of a running server."""
    app, found = create_app(engine), []
    monkeypatch.setattr(DrainingServer, "run", lambda _: found.append(gc.get_freeze_count()))
    gc.unfreeze()
    try:
        serve(app, host="127.0.0.1", port=0, started=lambda _: None)
    finally:
        gc.unfreeze()
    assert found[0] > 100_000
