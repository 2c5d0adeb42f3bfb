"""Work beside the model: few threads, a bounded queue, and nothing for clients that have left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from fastapi import Request

from promptcache.diagnostics import QueueFull, SchemaError
from promptcache.language import check_schema, limited_solver, parse_schema
from promptcache.server.errors import ClientGone
from promptcache.server.pools import WorkPool
from tests.server.attack_bodies import hard_schema


class _Client:
    """A client that may leave."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.request = Request({"type": "http"}, self._receive)

    async def _receive(self) -> dict[str, str]:
        await self.left.wait()
        return {"type": "http.disconnect"}


def _in_pool(test: Callable[[WorkPool, threading.Event, list[str]], Awaitable[None]]) -> None:
    async def run() -> None:
        go_on = threading.Event()
        try:
            await test(WorkPool(1, 2, "documents"), go_on, [])
        finally:
            go_on.set()

    asyncio.run(run())


def _start(pool: WorkPool, client: _Client, name: str, go_on: threading.Event, begun: list[str]) -> asyncio.Task[bool]:
    def work() -> bool:
        begun.append(name)
        return go_on.wait(60)

    return asyncio.create_task(pool.run(client.request, work))


async def _settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0.001)


def test_work_for_clients_that_have_left_is_not_begun() -> None:
    """A client that leaves before or while it waits loses its place; a client that leaves later gets its work done."""

    async def test(pool: WorkPool, go_on: threading.Event, begun: list[str]) -> None:
        clients = [_Client() for _ in range(4)]
        clients[0].left.set()
        with pytest.raises(ClientGone):
            await _start(pool, clients[0], "0", go_on, begun)
        tasks = [_start(pool, each, str(number), go_on, begun) for number, each in enumerate(clients[1:], 1)]
        await _settled()
        clients[2].left.set()
        clients[1].left.set()
        with pytest.raises(ClientGone):
            await tasks[1]
        go_on.set()
        assert [await tasks[0], await tasks[2]] == [True, True]
        assert begun == ["1", "3"]

    _in_pool(test)


def test_a_full_queue_refuses() -> None:
    """Above the limit of waiting requests the next one is refused at once, and the others are not."""

    async def test(pool: WorkPool, go_on: threading.Event, begun: list[str]) -> None:
        tasks = [_start(pool, _Client(), str(number), go_on, begun) for number in range(3)]
        await _settled()
        with pytest.raises(QueueFull, match="2 documents wait, and the limit is 2"):
            await _start(pool, _Client(), "3", go_on, begun)
        go_on.set()
        assert [await each for each in tasks] == [True] * 3

    _in_pool(test)


def test_requests_share_one_budget_of_the_solver() -> None:
    """All questions of a check together take no more steps than the limit, and the fault has the limit."""
    schema = parse_schema(hard_schema())
    with limited_solver(100_000), pytest.raises(SchemaError, match="more than 100,000 steps"):
        check_schema(schema)
