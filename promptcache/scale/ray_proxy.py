"""ASGI middleware of Ray's proxy: what clients get if their replica ends, and the header that names a schema.

Ray reads `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=promptcache.scale.ray_proxy:middlewares`. The proxy loads no torch.
"""

from __future__ import annotations

import json

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SCHEMA_HEADER = b"x-prompt-cache-schema"
_RAY_HEADER = b"serve_multiplexed_model_id"

_MAX_ATTEMPTS = 3
"""How often a request is sent to replicas that end before they have answered anything."""

_LOST = "the replica that answered this request has ended; send the request again"


def middlewares() -> list[Middleware]:
    """Return what Ray adds to its proxy."""
    return [Middleware(ReplicaLossMiddleware)]


class ReplicaLossMiddleware:
    """Sends a request again if its replica has ended before the answer began, else ends the stream with an error event.

    What Ray's proxy refuses itself becomes an error object.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request, answer = _ReplayedRequest(receive), _Answer(send)
        for _ in range(_MAX_ATTEMPTS):
            headers = [(_RAY_HEADER if name == SCHEMA_HEADER else name, value) for name, value in scope["headers"]]
            await self._app({**scope, "headers": headers}, request.again(), answer.take)
            if answer.has_begun or request.is_cancelled:
                break
        if not request.is_cancelled:
            await answer.finish()


class _ReplayedRequest:
    """The messages of a request, for more than one attempt."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._given: list[Message] = []
        self.is_cancelled = False

    def again(self) -> Receive:
        """Return a `receive` that gives the messages from the first one on."""
        given = iter([*self._given])

        async def receive() -> Message:
            message = next(given, None)
            if message is None:
                message = await self._receive()
                self.is_cancelled = message["type"] == "http.disconnect"
                self._given.append(message)
            return message

        return receive


class _Answer:
    """Sends the messages of an answer. Its head waits for the first part of the body."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._head: Message | None = None
        self._is_stream = self._is_of_proxy = self._is_whole = self.has_begun = False

    async def take(self, message: Message) -> None:
        """Take the next message."""
        if message["type"] == "http.response.start":
            kind = Headers(raw=message["headers"]).get("content-type", "")
            self._head = message
            self._is_stream = kind.startswith("text/event-stream")
            self._is_of_proxy = message["status"] >= 400 and kind.startswith("text/plain")  # the server's are JSON
        elif self._is_of_proxy:
            if not message.get("more_body", False):
                assert self._head is not None
                status, reason = self._head["status"], message.get("body", b"").decode(errors="replace").strip()
                if status == 429:
                    await self._error(429, "queue_full", "too many requests wait for the replicas: try later")
                else:
                    await self._error(503, "no_replica", f"no replica answers: {reason or status}")
        else:
            if self._head is not None and not self.has_begun:
                await self._send(self._head)
            self.has_begun, self._is_whole = True, not message.get("more_body", False)
            await self._send(message)

    async def finish(self) -> None:
        """Say that the replica has ended, if the answer is not whole."""
        if not self.has_begun:
            await self._error(503, "replica_lost", _LOST)
        elif self._is_stream and not self._is_whole:
            event = f"data: {json.dumps(_error_object('server_error', 'replica_lost', _LOST))}\n\n"
            await self._send({"type": "http.response.body", "body": event.encode()})

    async def _error(self, status: int, code: str, message: str) -> None:
        self.has_begun = self._is_whole = True
        kind = "rate_limit_error" if status == 429 else "server_error"
        headers = [(b"content-type", b"application/json"), (b"retry-after", b"1")]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        body = json.dumps(_error_object(kind, code, message)).encode()
        await self._send({"type": "http.response.body", "body": body})


def _error_object(kind: str, code: str, message: str) -> dict[str, dict[str, str | None]]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
