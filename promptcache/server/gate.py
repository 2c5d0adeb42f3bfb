"""The gate of all requests: their id, caller and host, the size of the body, and their line in the log.

It is plain ASGI: Starlette's middleware class loses disconnects of clients.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from promptcache.diagnostics import shown, size_text
from promptcache.server.errors import ApiError
from promptcache.server.keys import ApiKeys, digests
from promptcache.server.log import REQUESTS, now
from promptcache.settings import ServerSettings

LOG = logging.getLogger(REQUESTS)
"""One line of JSON for each request, without any text of prompts and answers."""

_OPEN = ("/", "/livez", "/health")
_METRICS = "/metrics"
_PAGE = ("/page/", "/docs", "/openapi.json")  # the same for everyone
_SHOWN_DIGITS = 12  # of the digest of a key, in the log
_HOST = re.compile(r"([A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(:\d*)?")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The sender of a request. `salt` separates the history of callers."""

    salt: str | None
    is_admin: bool


def is_address(host: str) -> bool:
    """Return whether a host is the number of an address, not a name. Nothing stands for no host."""
    try:
        return not host or bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def is_host(text: str) -> bool:
    """Return whether a text is a host with or without a port, as in the header Host."""
    return _HOST.fullmatch(text) is not None


class Gate:
    """ASGI middleware: request id, number of connections, key, size of the body, log."""

    def __init__(self, app: ASGIApp, *, keys: ApiKeys, settings: ServerSettings) -> None:
        self._app = app
        self._keys = keys
        self._settings = settings
        self._hosts = frozenset(map(str.lower, settings.allow_host))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it before its body is read."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        record: dict[str, Any] = {"time": now(), "id": request_id, "caller": None}
        record |= {"method": scope["method"], "path": scope["path"], "status": None}
        scope["state"] = {**scope.get("state", {}), "record": record}
        started = time.perf_counter()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record["status"] = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            self._check_connections(scope)
            caller = scope["state"]["caller"] = self._caller(scope, headers)
            record["caller"] = caller.salt and caller.salt[:_SHOWN_DIGITS]
            body = await self._timed_body(headers, receive)
            method = "GET" if scope["method"] == "HEAD" else scope["method"]  # the server sends no body for HEAD
            await self._app({**scope, "method": method}, _replaying(body, receive), send_with_id)
        except ApiError as error:
            record["error"] = error.code
            await error.response()(scope, receive, send_with_id)
        except Exception:
            record["status"] = record["status"] or 500
            record.setdefault("error", "internal_error")
            raise
        finally:
            record["duration_s"] = round(time.perf_counter() - started, 4)
            LOG.info(json.dumps(record))

    def _check_connections(self, scope: Scope) -> None:
        state = scope["app"].state.server
        number, most = state.num_busy_connections(), self._settings.max_connections
        if number > most and scope["path"] not in _OPEN:
            state.metrics.rejected("too_many_connections")
            message = f"{number} connections have requests, and the limit is {most}: try later"
            headers = {"retry-after": "1", "connection": "close"}
            raise ApiError(503, "too_many_connections", message, headers=headers)

    def _caller(self, scope: Scope, headers: Mapping[str, str]) -> Caller:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        (digest,) = digests([key.strip() if scheme.lower() == "bearer" else ""])
        if digest in self._keys.admins:
            return Caller(salt=digest, is_admin=True)
        if scope["path"] == _METRICS and self._keys.clients:
            if digest in self._keys.metrics:
                return Caller(salt=digest, is_admin=False)
            if digest in self._keys.clients:
                message = "the metrics are of all callers: a key of --metrics-key-file or --admin-key-file is needed"
                raise ApiError(403, "metrics_key_needed", message)
        if digest in self._keys.clients:
            return Caller(salt=digest, is_admin=False)
        if scope["path"] in _OPEN or scope["path"].startswith(_PAGE):
            return Caller(salt=None, is_admin=False)
        if self._keys.clients:
            message = "a key is needed: Authorization: Bearer KEY" if not key else "this key is not known here"
            raise ApiError(401, "invalid_api_key", message, headers={"www-authenticate": "Bearer"})
        self._check_host(headers.get("host", ""))
        return Caller(salt=None, is_admin=False)

    def _check_host(self, given: str) -> None:
        """Refuse a request under a name that is not this server's.

        A page of another site could read all answers if the name of that site led here (DNS rebinding). Addresses are
        no names: another site cannot have this one.
        """
        host = (urlsplit(f"//{given}").hostname or "") if is_host(given) else given
        if not (host in self._hosts or host == "localhost" or host.endswith(".localhost") or is_address(host)):
            message = f"a server without keys does not answer under the name {shown(given)}; --allow-host allows it"
            raise ApiError(403, "host_not_allowed", message)

    async def _timed_body(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        limit_s = self._settings.client_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._body(headers, receive)
        except TimeoutError:
            message = f"the body did not arrive within {limit_s:g} s"
            raise ApiError(408, "client_too_slow", message, headers={"connection": "close"}) from None

    async def _body(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._settings.max_body_bytes:
            raise self._too_large()
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ApiError(400, "disconnected", "the client left before it had sent its request")
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self._settings.max_body_bytes:
                raise self._too_large()
        return bytes(body)

    def _too_large(self) -> ApiError:
        message = f"the body is larger than {size_text(self._settings.max_body_bytes)}, the limit of this server"
        return ApiError(413, "body_too_large", message, headers={"connection": "close"})


def _replaying(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body that was read already, and then what `receive` gives."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
