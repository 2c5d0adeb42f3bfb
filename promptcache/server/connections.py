"""Connections: slow clients lose theirs, the oldest that wait make room for new ones, malformed requests get an error.

A connection *waits* until a whole request has arrived on it: it is silent, idle after an answer, or in the middle of a
request. It is *busy* from then until its answer is complete.
"""

from __future__ import annotations

import asyncio
import json
import sys

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from promptcache.diagnostics import InvalidValue
from promptcache.server.errors import ApiError
from promptcache.server.gate import LOG
from promptcache.server.log import now

if sys.platform != "win32":
    import resource

_OTHER_FILES = 256
"""Files that a process needs beside its connections: listening sockets, the store, the log, libraries."""

_MAX_FILES = 65_536
"""The soft limit of open files is not raised above this: some programs walk through all possible files."""


class ConnectionLimit:
    """The connections of one server. Above the limit those that have waited for the longest time are closed."""

    def __init__(self, max_connections: int) -> None:
        self._max = max_connections
        self._min_waiting = max(1, max_connections // 8)  # so that `/health` can be asked while all others are busy
        self._waiting: dict[H11Protocol, None] = {}  # the oldest first
        self._busy: set[H11Protocol] = set()

    @property
    def num_busy(self) -> int:
        """Number of connections whose request is being answered."""
        return len(self._busy)

    @property
    def max_open(self) -> int:
        """The largest number of open connections."""
        return self._max + self._min_waiting

    def wait(self, connection: H11Protocol) -> None:
        """Note that a connection waits for a request from now on, and close the oldest that are too many."""
        self.remove(connection)
        self._waiting[connection] = None
        while len(self._waiting) > max(self._min_waiting, self._max - len(self._busy)):
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.transport.abort()  # nothing is lost, unless the client does not read its last answer

    def answer(self, connection: H11Protocol) -> None:
        """Note that the request of a connection has arrived."""
        self.remove(connection)
        self._busy.add(connection)

    def remove(self, connection: H11Protocol) -> None:
        """Forget a connection."""
        self._waiting.pop(connection, None)
        self._busy.discard(connection)


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol of HTTP with limits.

    A connection is closed if the head of a request does not arrive within `timeout_s` seconds, or if nothing can be
    written for as long because the client does not read. The time of an answer is not limited here. A request that is
    not HTTP gets an error object.
    """

    timeout_s: float
    limit: ConnectionLimit
    _head: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self._head = self.loop.call_later(self.timeout_s, transport.abort)
        self.limit.wait(self)

    def handle_events(self) -> None:
        super().handle_events()
        if self.transport.is_closing():
            return
        is_answered = self.cycle is None or self.cycle.response_complete
        if not is_answered and not self.cycle.more_body:
            self.limit.answer(self)
        if self.conn.their_state is h11.IDLE or (is_answered and self.conn.their_state is h11.SEND_BODY):
            self._head = self._head or self.loop.call_later(self.timeout_s, self.transport.abort)
        else:
            _cancel(self._head)
            self._head = None

    def on_response_complete(self) -> None:
        self.limit.wait(self)  # first: uvicorn goes on with the next request, if that has arrived
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self.loop.call_later(self.timeout_s, self.transport.abort)  # the client may never read its last answer

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # otherwise it has its answer
            error = ApiError(400, "invalid_http", "the request is not valid HTTP")
            LOG.info(json.dumps({"time": now(), "caller": None, "status": error.status, "error": error.code}))
            headers = [("content-type", "application/json"), ("connection", "close")]
            head = h11.Response(status_code=error.status, headers=headers, reason=b"Bad Request")
            for event in (head, h11.Data(data=json.dumps(error.body).encode()), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._unread)

    def connection_lost(self, exc: Exception | None) -> None:
        self.limit.remove(self)
        _cancel(self._head)
        _cancel(self._unread)
        super().connection_lost(exc)


def limited_protocol(timeout_s: float, limit: ConnectionLimit) -> type[LimitedProtocol]:
    """Return the protocol with these limits."""

    class Limited(LimitedProtocol):
        pass

    Limited.timeout_s, Limited.limit = timeout_s, limit
    return Limited


def raise_file_limit(max_connections: int) -> None:
    """Raise the soft limit of open files of this process, so that all connections fit.

    Raises:
        InvalidValue: The hard limit is too low.
    """
    if sys.platform == "win32":
        return
    needed = ConnectionLimit(max_connections).max_open + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    most = max(_MAX_FILES, needed)
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if wanted < needed:
        raise InvalidValue(
            f"{max_connections} connections need {needed} open files, and this process may have {wanted} (ulimit -Hn)"
        )
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
