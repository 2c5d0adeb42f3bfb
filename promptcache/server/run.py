"""A uvicorn server that drains on SIGTERM: it refuses new requests, finishes running ones, and ends."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from promptcache.server.connections import ConnectionLimit, limited_protocol
from promptcache.server.state import ServerState
from promptcache.settings import ServerSettings

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


class DrainingServer(uvicorn.Server):
    """Ends when nothing runs any more, and when the worker is dead. A second signal ends it at once.

    Attributes:
        last_bytes_s: Seconds that connections have to take their last bytes after the drain.
        worker_died: Whether it has ended because the thread that runs the model has.
    """

    def __init__(
        self,
        app: FastAPI,
        started: Callable[[str], None],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """Create a server.

        Args:
            host: Address to listen on.
            port: 0 takes a free one.
            started: Called with the URL once the server listens.
        """
        settings: ServerSettings = app.state.settings
        self._limit = ConnectionLimit(settings.max_connections)
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                http=limited_protocol(settings.client_timeout_s, self._limit),
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
            state.num_busy_connections = lambda: self._limit.num_busy
            for server in self.servers:
                for listening in server.sockets:
                    _set_backlog(listening.fileno(), _BACKLOG)
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
            self._loop.call_soon_threadsafe(self._begin_drain)
        else:
            super().handle_exit(sig, frame)
            self._loop.call_soon_threadsafe(self._end_at_once)

    def _begin_drain(self) -> None:
        state: ServerState = self._app.state.server
        self._tasks.add(asyncio.create_task(self._finish(state, state.settings.drain_s)))

    def _end_at_once(self) -> None:
        self._tasks.add(asyncio.create_task(self._finish(self._app.state.server, 0)))
        asyncio.get_running_loop().call_later(_SECOND_SIGNAL_S, self._force_exit)

    async def _finish(self, state: ServerState, drain_s: float) -> None:
        try:
            await state.drain(drain_s)  # what has not ended gets an error, while connections are open
        finally:
            self.should_exit = True

    def _force_exit(self) -> None:
        """End without waiting for requests whose threads go on, or for the end of the application."""
        self._abort_connections()
        self.should_exit = self.force_exit = True

    def _abort_connections(self) -> None:
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()


def _set_backlog(fileno: int, backlog: int) -> None:
    """Set the number of connections that wait in the kernel. asyncio accepts as many at once as it was given."""
    with socket.socket(fileno=os.dup(fileno)) as same:
        same.listen(backlog)


def serve(
    app: FastAPI,
    *,
    host: str,
    port: int,
    started: Callable[[str], None],
) -> bool:
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
