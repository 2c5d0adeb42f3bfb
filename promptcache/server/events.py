"""Passes tokens from the worker thread to the event loop, for the rows of one request."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from starlette.types import Receive

from promptcache.answers import TokenLogprobs
from promptcache.decode import Completion, Ticket
from promptcache.server.errors import ApiError, ClientGone

MAX_UNREAD = 512
"""Number of tokens that the client of a stream may be behind before its request is cancelled."""

RowItem: TypeAlias = int | TokenLogprobs | Completion | BaseException
"""A generated token, the end of a row, or an error."""


class RowEvents:
    """What happens to the rows of one request, in order. Used in one event loop, filled by the worker thread."""

    def __init__(self, timeout_s: float, max_unread: float) -> None:
        """Create the events of a request, in the event loop that runs.

        Args:
            timeout_s: Seconds after which it ends.
            max_unread: Number of items that may wait to be read; a request with more of them ends.
        """
        self._loop = asyncio.get_running_loop()
        self._max_unread = max_unread
        self._items: deque[tuple[int, RowItem]] = deque()
        self._ready = asyncio.Event()
        self._tickets: list[Ticket] = []
        self._watcher: asyncio.Task[None] | None = None
        self._deadline = self._loop.call_later(timeout_s, self._time_out, timeout_s)
        self._closed = False

    def listener(self, row: int) -> Callable[[RowItem], None]:
        """Return the listener of a row, for `Service.submit`."""

        def listen(item: RowItem) -> None:
            with suppress(RuntimeError):  # the event loop is closed: the server has ended
                self._loop.call_soon_threadsafe(self._add, row, item)

        return listen

    def watch(self, tickets: list[Ticket], receive: Receive) -> None:
        """Cancel these tickets once the client has gone."""
        self._tickets = tickets
        self._watcher = self._loop.create_task(self._wait_for_disconnect(receive))

    async def first(self, timeout_s: float) -> RowItem | None:
        """Return the first item, which stays in its place; None if there is none within `timeout_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        return self._items[0][1] if self._items else None

    async def next(self, timeout_s: float | None = None) -> tuple[int, RowItem]:
        """Return the next item with its row.

        Raises:
            TimeoutError: There is none within `timeout_s`.
        """
        if not self._items:
            async with asyncio.timeout(timeout_s):  # `wait_for` makes a task for each token
                await self._ready.wait()
        item = self._items.popleft()
        if not self._items:
            self._ready.clear()
        return item

    def close(self) -> None:
        """End the request: rows that still run leave the batch."""
        self._closed = True
        self._deadline.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        for ticket in self._tickets:
            ticket.cancel()
        self._tickets.clear()  # their listeners hold this object, and each of them a compiled format

    def _add(self, row: int, item: RowItem) -> None:
        if self._closed:
            return
        self._items.append((row, item))
        self._ready.set()
        if len(self._items) > self._max_unread:
            self._fail(ApiError(408, "client_too_slow", f"the client is {self._max_unread} tokens behind"))

    def _fail(self, error: BaseException) -> None:
        """Put an error before all other items, and cancel the rows."""
        self._items.appendleft((0, error))
        self._ready.set()
        self.close()

    def _time_out(self, timeout_s: float) -> None:
        message = f"the request took longer than {timeout_s:g} s, the limit here"
        self._fail(ApiError(408, "request_timeout", message, headers={"x-should-retry": "false"}))

    async def _wait_for_disconnect(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._watcher = None  # it must not cancel itself
        self._fail(ClientGone())
