"""Threads for the work of a request beside the model: reading its body, planning, checking and drawing documents.

Each kind of work has few threads and a bounded queue of its own, so a request waits for others of its kind only. Work
for a client that has left is not begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio.to_thread import run_sync
from fastapi import Request
from starlette.types import Receive

from promptcache.diagnostics import QueueFull
from promptcache.language import MAX_STEPS, limited_solver
from promptcache.server.errors import ClientGone

SOLVER_STEPS = MAX_STEPS // 100
"""Steps of the solver for one request: a hundredth of what a command may take, and a hundred times what usual schemas
need. The solver holds the interpreter's lock, so all other requests wait for it.
"""

_READERS = 1
_PLANNERS = 2
_LARGE_PLANNERS = 1
_DOCUMENTS = 1
_MAX_DOCUMENTS = 16
"""Documents that may wait to be checked, planned or drawn."""

_SMALL_BYTES = 16 * 2**10
"""Bodies up to this size are read in the event loop: a thread would take longer."""

_LARGE_BYTES = 64 * 2**10
"""Prompts of larger bodies are planned one after another: a megabyte takes up to 800 MB while it is tokenized."""

_Result = TypeVar("_Result")


class WorkPool:
    """Some threads with a queue in order of arrival."""

    def __init__(
        self, num_threads: int, max_waiting: int, words: str, refused: Callable[[str], None] = lambda _: None
    ) -> None:
        """Create a pool.

        Args:
            max_waiting: Requests that may wait for a thread; more are refused.
            words: What waits, for the message.
            refused: Called with the reason if a request is refused.
        """
        self._free = asyncio.Semaphore(num_threads)
        self._threads = anyio.CapacityLimiter(num_threads)
        self._max_waiting = max_waiting
        self._words = words
        self._refused = refused
        self._num_waiting = 0

    async def run(self, request: Request, work: Callable[[], _Result]) -> _Result:
        """Return the result of work for a request. Work that has begun runs to its end.

        Raises:
            QueueFull: Too many requests wait.
            ClientGone: The client has left before the work began.
        """
        if self._free.locked() and self._num_waiting >= self._max_waiting:
            self._refused("queue_full")
            message = f"{self._num_waiting} {self._words} wait, and the limit is {self._max_waiting}: try later"
            raise QueueFull(message, "queue_full")

        def limited() -> _Result:
            with limited_solver(SOLVER_STEPS):
                return work()

        self._num_waiting += 1
        try:
            await self._take_thread(request)
        finally:
            self._num_waiting -= 1
        try:
            return await run_sync(limited, limiter=self._threads)
        finally:
            self._free.release()

    async def _take_thread(self, request: Request) -> None:
        leaving = asyncio.create_task(client_left(request.receive))
        taking = asyncio.create_task(self._free.acquire())
        try:
            await asyncio.wait((leaving, taking), return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                raise ClientGone
        except BaseException:
            if not taking.cancel():  # it has the thread
                self._free.release()
            raise
        finally:
            leaving.cancel()


class WorkPools:
    """The pools of a server.

    Attributes:
        documents: Checks, plans and draws documents for clients that want no answer.
    """

    def __init__(self, max_waiting: int, refused: Callable[[str], None]) -> None:
        """Create the pools of the running event loop.

        Args:
            max_waiting: Requests for answers that may wait.
            refused: Called with the reason if a request is refused that is no question yet.
        """
        self._reading = WorkPool(_READERS, max_waiting, "requests", refused)
        self._planning = WorkPool(_PLANNERS, max_waiting, "requests")
        self._large_planning = WorkPool(_LARGE_PLANNERS, max_waiting, "large requests")
        self.documents = WorkPool(_DOCUMENTS, _MAX_DOCUMENTS, "documents", refused)

    async def read(self, request: Request, num_bytes: int, work: Callable[[], _Result]) -> _Result:
        """Return the result of work on a body; a large body is read in a thread. Errors are those of `WorkPool.run`."""
        return work() if num_bytes <= _SMALL_BYTES else await self._reading.run(request, work)

    async def plan(self, request: Request, work: Callable[[], _Result]) -> _Result:
        """Return the result of work on the prompt of an answer. Errors are those of `WorkPool.run`."""
        is_large = len(await request.body()) > _LARGE_BYTES
        return await (self._large_planning if is_large else self._planning).run(request, work)


async def client_left(receive: Receive) -> None:
    """Return once the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
