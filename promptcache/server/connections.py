"""Time limits for connections: clients that are slow to ask, and clients that do not read their answers."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def timed_protocol(timeout_s: float) -> type[H11Protocol]:
    """Return uvicorn's protocol of HTTP with a time limit for clients.

    A connection is closed if the head of a request does not arrive within `timeout_s` seconds, or if nothing can be
    written for as long because the client does not read. The time of an answer is not limited here.
    """

    class TimedProtocol(H11Protocol):
        _head: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
            super().connection_made(transport)
            self._head = self.loop.call_later(timeout_s, transport.abort)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                _cancel(self._head)
                self._head = None
            elif self._head is None:
                self._head = self.loop.call_later(timeout_s, self.transport.abort)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unread = self.loop.call_later(timeout_s, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            _cancel(self._unread)

        def connection_lost(self, exc: Exception | None) -> None:
            _cancel(self._head)
            _cancel(self._unread)
            super().connection_lost(exc)

    return TimedProtocol


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
