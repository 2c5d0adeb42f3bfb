"""Answers in event loops of asyncio, from a service that many of them may share.

`answer` plans a request in a thread of the loop's pool, and `stream` in its call. Tokens come from the thread of the
service.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

from promptcache.answers import TokenLogprobs
from promptcache.decode.completion import Completion
from promptcache.decode.job import Job, Listener, job_of
from promptcache.decode.request import Request, RequestBuilder
from promptcache.decode.service import Service, ServiceState, Ticket
from promptcache.decode.stream import AnswerStream
from promptcache.locks import new_lock
from promptcache.options import Options
from promptcache.planning import PromptSource
from promptcache.settings import ServiceLimits
from promptcache.structured import Parsed

_LIMITS = ServiceLimits(max_waiting=sys.maxsize, max_waiting_tokens=sys.maxsize, queue_timeout_s=sys.float_info.max)
"""Tasks wait for each other, as threads that call `Engine.generate` do. None is refused."""


class _Awaited:
    """A request of a service, and the items that its listener gets.

    Attributes:
        loop: The event loop that uses it; None before the request is submitted.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._items: asyncio.Queue[int | TokenLogprobs | Completion | BaseException] = asyncio.Queue()
        self._ticket: Ticket | None = None
        self._is_cancelled = False

    async def submit(self, submit: Callable[[], Ticket]) -> None:
        """Submit the request to a service, by a function that may block."""
        self.loop = asyncio.get_running_loop()

        def run() -> None:
            self._ticket = submit()
            if self._is_cancelled:
                self._ticket.cancel()

        await asyncio.to_thread(run)

    async def next(self) -> int | TokenLogprobs | Completion:
        """Return the next item, or raise the error of the request."""
        item = await self._items.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def cancel(self) -> None:
        """Stop the request, also one that is about to be submitted. Any thread may call this."""
        self._is_cancelled = True
        if self._ticket is not None:
            self._ticket.cancel()

    def listen(self, item: int | TokenLogprobs | Completion | BaseException) -> None:
        """Pass an item to the event loop; the listener of the request."""
        assert self.loop is not None, "only a submitted request has items"
        try:
            self.loop.call_soon_threadsafe(self._items.put_nowait, item)
        except RuntimeError:  # the event loop is closed
            self.cancel()


class AsyncStream(AnswerStream[Parsed], AsyncIterator[str]):
    """An answer that is being generated, for `async for`. Afterwards `completion` has the whole answer.

    The request begins with the first piece. It is cancelled by `aclose`, by the end of an `async with` block, if a task
    that waits for a piece is cancelled, and if the stream is deleted.
    """

    def __init__(self, request: Request, asked: _Awaited, submit: Callable[[], Ticket]) -> None:
        super().__init__(request)
        self._over = False
        self._asked, self._submit = asked, submit
        self._reading = asyncio.Lock()  # one task waits for an item; others would wait for ever at the end
        # The service has no reference to the stream, so a stream can be deleted.
        weakref.finalize(self, asked.cancel).atexit = False

    async def __anext__(self) -> str:
        async with self._reading:
            try:
                while not self._over:
                    if self._asked.loop is None:
                        await self._asked.submit(self._submit)
                    item = await self._asked.next()
                    if isinstance(item, Completion):
                        self.completion, self._over = item, True
                    if piece := self._piece(item):
                        return piece
            except BaseException:
                await self.aclose()
                raise
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Cancel the request and discard the unread text."""
        self._over = True
        self._asked.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.aclose()


class AsyncService:
    """A service for event loops. The first request opens it. Thread-safe."""

    def __init__(self, requests: RequestBuilder, open_service: Callable[[ServiceLimits], Service]) -> None:
        self._requests = requests
        self._open = open_service
        self._service: Service | None = None
        self._lock = new_lock()

    @property
    def service(self) -> Service:
        """The service. Another one is opened if it has failed, and in a forked process."""
        with self._lock:
            if self._service is None or self._service.state is not ServiceState.READY:
                self._service = self._open(_LIMITS)
            return self._service

    async def answer(self, prompt: PromptSource, options: Options) -> Completion:
        """Return the answer to a prompt. If the task is cancelled, so is the request."""
        asked = _Awaited()
        try:
            await asked.submit(lambda: self.service.submit_job(self._job(prompt, options, asked.listen)))
            while not isinstance(item := await asked.next(), Completion):
                pass
            return item
        finally:
            asked.cancel()

    def stream(self, prompt: PromptSource, options: Options) -> AsyncStream[Any]:
        """Return the answer to a prompt, piece by piece. The request is planned and checked now."""
        options.check_stream()
        asked = _Awaited()
        job = self._job(prompt, options, asked.listen)
        return AsyncStream(job.request, asked, lambda: self.service.submit_job(job))

    def _job(self, prompt: PromptSource, options: Options, listener: Listener) -> Job:
        return job_of(self._requests.build(prompt, options), listener, self._requests.executor)
