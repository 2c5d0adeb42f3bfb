"""Calls from other threads into an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class LoopCalls:
    """Calls from other threads into the running event loop. Calls that wait at the same time take one wake-up.

    After a step the worker thread passes a token of each row. A wake-up is a system call, at which the two threads
    hand the interpreter's lock to each other.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._is_woken = False

    def add(self, call: Callable[..., None], *args: Any) -> None:
        """Call `call(*args)` in the event loop, after the calls that were added before. Any thread may call this."""
        self._waiting.append((call, args))
        if not self._is_woken:
            self._is_woken = True
            with suppress(RuntimeError):  # the event loop is closed: the server has ended
                self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._is_woken = False  # first, so that a call that is added from now on wakes the loop again
        while self._waiting:
            call, args = self._waiting.popleft()
            self._loop.call_soon(call, *args)
