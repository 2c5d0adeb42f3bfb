"""Connections: slow clients lose theirs, idle ones make room for new ones, malformed requests get an error object."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from promptcache.server.errors import ApiError


def limited_protocol(timeout_s: float, max_connections: int) -> type[H11Protocol]:
    """Return uvicorn's protocol of HTTP with limits.

    A connection is closed if the head of a request does not arrive within `timeout_s` seconds, or if nothing can be
    written for as long because the client does not read. The time of an answer is not limited here. A new connection
    above `max_connections` closes the one that has been idle since an answer for the longest time, if there is one.
    A request that is not HTTP gets an error object.
    """

    class LimitedProtocol(H11Protocol):
        _head: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
            super().connection_made(transport)
            if len(self.connections) > max_connections:
                _close_idle(self.connections)
            self._head = self.loop.call_later(timeout_s, transport.abort)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                _cancel(self._head)
                self._head = None
            elif self._head is None:
                self._head = self.loop.call_later(timeout_s, self.transport.abort)

        def send_400_response(self, msg: str) -> None:
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # otherwise it has its answer
                error = ApiError(400, "invalid_http", "the request is not valid HTTP")
                headers = [("content-type", "application/json"), ("connection", "close")]
                head = h11.Response(status_code=error.status, headers=headers, reason=b"Bad Request")
                for event in (head, h11.Data(data=json.dumps(error.body).encode()), h11.EndOfMessage()):
                    self.transport.write(self.conn.send(event) or b"")
            self.transport.close()

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

    return LimitedProtocol


def _close_idle(connections: Iterable[Any]) -> None:
    """Close the connection that waits for its next request for the longest time; none if none waits."""
    waiting = {
        each: each.timeout_keep_alive_task.when()
        for each in connections
        if each.timeout_keep_alive_task is not None and not each.transport.is_closing()
    }
    if waiting:
        min(waiting, key=waiting.__getitem__).timeout_keep_alive_handler()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
