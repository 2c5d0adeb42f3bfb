"""The uvicorn server: limits of its connections, and its end.

Slow clients lose their connections, the oldest that wait make room for new ones, and malformed requests get an error. A
connection *waits* until a whole request has arrived on it: it is silent, idle after an answer, or in the middle of a
request. It is *busy* from then until its answer is complete.

On SIGTERM the server drains: it refuses new requests, finishes running ones, and ends.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import sys
from collections.abc import Callable
from types import FrameType

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from promptcache.diagnostics import InvalidValue
from promptcache.server.errors import ApiError
from promptcache.server.gate import LOG
from promptcache.server.log import now
from promptcache.server.state import ServerState
from promptcache.settings import ServerSettings

if sys.platform != "win32":
    import resource

_OTHER_FILES = 256
"""Files that a process needs beside its connections: listening sockets, the store, the log, libraries."""

_MAX_FILES = 65_536
"""The soft limit of open files is not raised above this: some programs walk through all possible files."""

_LAST_BYTES_S = 5
"""Seconds that connections have to take their last bytes after the drain."""

_SECOND_SIGNAL_S = 0.5
"""Seconds that connections have to take their last bytes after a second signal."""

_IDLE_S = 75
"""Seconds that a connection may be idle: more than clients and balancers keep one (httpx 5, nginx 60). Otherwise they
send requests on connections that are being closed.
"""

_ACCEPTED_AT_ONCE = 64
"""New connections that are opened before those that are open are read."""

_BACKLOG = 2048
"""New connections that may wait in the kernel."""


class ConnectionLimit:
    """The connections of one server. Above the limit those that have waited for the longest time are closed.

    Attributes:
        max_open: The largest number of open connections.
        busy: Those whose request is being answered.
    """

    def __init__(self, max_connections: int) -> None:
        self._max = max_connections
        self._min_waiting = max(1, max_connections // 8)  # so that `/health` can be asked while all others are busy
        self._waiting: dict[H11Protocol, None] = {}  # the oldest first
        self.max_open = self._max + self._min_waiting
        self.busy: set[H11Protocol] = set()

    def wait(self, connection: H11Protocol) -> None:
        """Note that a connection waits for a request from now on, and close the oldest that are too many."""
        self.remove(connection)
        self._waiting[connection] = None
        while len(self._waiting) > max(self._min_waiting, self._max - len(self.busy)):
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.transport.abort()  # nothing is lost, unless the client does not read its last answer

    def answer(self, connection: H11Protocol) -> None:
        """Note that the request of a connection has arrived."""
        self.remove(connection)
        self.busy.add(connection)

    def remove(self, connection: H11Protocol) -> None:
        """Forget a connection."""
        self._waiting.pop(connection, None)
        self.busy.discard(connection)


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


class DrainingServer(uvicorn.Server):
    """Ends when nothing runs any more, and when the worker is dead. A second signal ends it at once.

    Attributes:
        last_bytes_s: Seconds that connections have to take their last bytes after the drain.
        worker_died: Whether it has ended because the thread that runs the model has.
    """

    def __init__(self, app: FastAPI, started: Callable[[str], None], *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Create a server; arguments are those of `serve`."""
        settings: ServerSettings = app.state.settings
        self._limit = connections = ConnectionLimit(settings.max_connections)

        class Limited(LimitedProtocol):
            timeout_s = settings.client_timeout_s
            limit = connections

        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                http=Limited,
                log_config=None,
                log_level="error",  # its warnings are about requests, and not in JSON
                access_log=False,
                server_header=False,
                proxy_headers=False,
                ws="none",
                timeout_keep_alive=_IDLE_S,
                backlog=_ACCEPTED_AT_ONCE,
            )
        )
        self._app = app
        self._started = started
        self.last_bytes_s: float = _LAST_BYTES_S
        self.worker_died = False
        self._is_draining = False
        self._tasks: set[asyncio.Task[None]] = set()  # the loop has weak references to tasks only
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and report the address."""
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        if self.started:
            state: ServerState = self._app.state.server
            state.num_busy_connections = lambda: len(self._limit.busy)
            for listening in (each for server in self.servers for each in server.sockets):
                with socket.socket(fileno=os.dup(listening.fileno())) as same:
                    same.listen(_BACKLOG)  # asyncio accepts as many at once as it was given
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            self._started(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end."""
        self.worker_died = self._app.state.server.service.state == "dead"
        return await super().on_tick(counter) or self.worker_died

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the connections; those that do not take their last bytes in time are aborted.

        Their requests then end as those of a client that has gone. uvicorn would cancel them.
        """
        abort = asyncio.get_running_loop().call_later(self.last_bytes_s, self._abort_connections)
        await super().shutdown(sockets)
        abort.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain. A second signal, or one before the start, ends the server at once."""
        if self._loop is None:
            super().handle_exit(sig, frame)
        elif not self._is_draining:
            self._is_draining = True
            self._loop.call_soon_threadsafe(self._drain, self._app.state.settings.drain_s)
        else:
            super().handle_exit(sig, frame)
            self._loop.call_soon_threadsafe(self._drain, 0)
            self._loop.call_soon_threadsafe(self._loop.call_later, _SECOND_SIGNAL_S, self._force_exit)

    def _drain(self, drain_s: float) -> None:
        async def finish() -> None:
            try:
                await self._app.state.server.drain(drain_s)  # what has not ended gets an error, with open connections
            finally:
                self.should_exit = True

        self._tasks.add(asyncio.create_task(finish()))

    def _force_exit(self) -> None:
        """End without waiting for requests whose threads go on, or for the end of the application."""
        self._abort_connections()
        self.should_exit = self.force_exit = True

    def _abort_connections(self) -> None:
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()


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


def serve(app: FastAPI, *, host: str, port: int, started: Callable[[str], None]) -> bool:
    """Serve an application until SIGTERM or SIGINT, or until the thread that runs the model has ended.

    Args:
        host: Address to listen on.
        port: 0 takes a free one.
        started: Called with the URL once the server listens.

    Returns:
        Whether the thread that runs the model was alive at the end.
    """
    server = DrainingServer(app, started, host=host, port=port)
    gc.collect()
    gc.freeze()  # a collection of all objects of torch, transformers and the schemas would stop all requests
    server.run()
    return not server.worker_died


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
