"""The gate of all requests: their id, caller and host, the size of the body, their line in the log; and the keys.

It is plain ASGI: Starlette's middleware class loses disconnects of clients.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import logging
import re
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from promptcache.diagnostics import InvalidValue, shown, size_text
from promptcache.server.errors import ApiError
from promptcache.server.log import REQUESTS, now
from promptcache.settings import ServerSettings

LOG = logging.getLogger(REQUESTS)
"""One line of JSON for each request, without any text of prompts and answers."""

_OPEN = ("/", "/livez", "/health")
_METRICS = "/metrics"
_PAGE = ("/page/", "/docs", "/openapi.json")  # the same for everyone
_SHOWN_DIGITS = 12  # of the digest of a key, in the log
_HOST = re.compile(r"([A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(:\d*)?")
_KEY = re.compile(r"[!-~]+")
_KEY_WORDS = "letters without accents, digits and signs are expected, without spaces; headers of HTTP carry no others"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeys:
    """Digests of the keys of a server. The keys themselves are not kept.

    Attributes:
        clients: Keys of clients; without any, no key is needed.
        admins: Keys that may also change schemas and read metrics. Without any, schemas cannot be changed.
        metrics: Keys that may read the metrics of all callers, and nothing else.
    """

    clients: frozenset[str] = frozenset()
    admins: frozenset[str] = frozenset()
    metrics: frozenset[str] = frozenset()


def digests(keys: Iterable[str]) -> frozenset[str]:
    """Return the digests of keys. Comparing digests takes a time that tells nothing about the keys."""
    return frozenset(hashlib.sha256(key.encode()).hexdigest() for key in keys)


def read_keys(path: Path) -> frozenset[str]:
    """Return the digests of the keys in a file: one key a line; empty lines and lines with # are skipped.

    Raises:
        InvalidValue: The file has no key, a key that is not printable ASCII without spaces, or is not UTF-8.
        OSError: The file cannot be read.
    """
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        message = f"{path}: byte 0x{data[fault.start]:02x} in line {line} is not UTF-8; save the file as UTF-8"
        raise InvalidValue(message) from None
    lines = enumerate((line.strip() for line in text.splitlines()), 1)
    keys = {number: line for number, line in lines if line and not line.startswith("#")}
    if not keys:
        raise InvalidValue(f"{path}: at least one key is expected, each on a line of its own")
    for number, key in keys.items():
        if _KEY.fullmatch(key) is None:
            raise InvalidValue(f"{path}: the key in line {number} is not allowed: {_KEY_WORDS}")
    return digests(keys.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The sender of a request. `salt` separates the history of callers."""

    salt: str | None
    is_admin: bool


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
            state = scope["app"].state.server
            number, most = state.num_busy_connections(), self._settings.max_connections
            if number > most and scope["path"] not in _OPEN:
                state.metrics.rejected("too_many_connections")
                message = f"{number} connections have requests, and the limit is {most}: try later"
                advice = {"retry-after": "1", "connection": "close"}
                raise ApiError(503, "too_many_connections", message, headers=advice)
            caller = scope["state"]["caller"] = self._caller(scope, headers)
            record["caller"] = caller.salt and caller.salt[:_SHOWN_DIGITS]
            body = await self._body(headers, receive)
            unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

            async def replay() -> Message:
                return unread.pop() if unread else await receive()

            method = "GET" if scope["method"] == "HEAD" else scope["method"]  # the server sends no body for HEAD
            await self._app({**scope, "method": method}, replay, send_with_id)
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
        host = (urlsplit(f"//{given}").hostname or "") if _HOST.fullmatch(given) else given
        with suppress(ValueError):
            if not host or ipaddress.ip_address(host):
                return
        if not (host in self._hosts or host == "localhost" or host.endswith(".localhost")):
            message = f"a server without keys does not answer under the name {shown(given)}; --allow-host allows it"
            raise ApiError(403, "host_not_allowed", message)

    async def _body(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        limit_s, most = self._settings.client_timeout_s, self._settings.max_body_bytes
        length = headers.get("content-length", "0")
        nbytes = int(length) if length.isdecimal() else 0
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(limit_s):
                while more and nbytes <= most:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ApiError(400, "disconnected", "the client left before it had sent its request")
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    nbytes = max(nbytes, len(body))
        except TimeoutError:
            words = f"the body did not arrive within {limit_s:g} s"
            raise ApiError(408, "client_too_slow", words, headers={"connection": "close"}) from None
        if nbytes > most:
            words = f"the body is larger than {size_text(most)}, the limit of this server"
            raise ApiError(413, "body_too_large", words, headers={"connection": "close"})
        return bytes(body)
