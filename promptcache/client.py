"""For clients of several servers: the header by which a balancer sends requests of one schema to one server.

The functions are event hooks of `httpx` and of the HTTP client of `openai`. They import neither.

    client = OpenAI(http_client=DefaultHttpxClient(event_hooks={"request": [set_schema_header]}), …)
"""

from __future__ import annotations

import json
from typing import Any, Protocol
from urllib.parse import quote

from promptcache.diagnostics import LanguageError
from promptcache.language import parse_prompt

SCHEMA_HEADER = "x-prompt-cache-schema"
"""Name of the header. Its value is the name of the schema, percent-encoded."""


class HttpRequest(Protocol):
    """Members of a request of httpx that the hooks use."""

    headers: Any

    def read(self) -> bytes:
        """Return the body."""

    async def aread(self) -> bytes:
        """Return the body of a request of an asynchronous client."""


def set_schema_header(request: HttpRequest) -> None:
    """Set the header of a request from its body: an event hook of `httpx.Client` and of `openai.DefaultHttpxClient`.

    A request that has the header keeps it. A request without a schema gets none.
    """
    _set(request, request.read())


async def set_schema_header_async(request: HttpRequest) -> None:
    """Do the same for `httpx.AsyncClient` and `openai.DefaultAsyncHttpxClient`."""
    _set(request, await request.aread())


def _set(request: HttpRequest, body: bytes) -> None:
    if SCHEMA_HEADER not in request.headers and (schema := schema_of(body)):
        request.headers[SCHEMA_HEADER] = quote(schema, safe="")


def schema_of(body: bytes) -> str | None:
    """Return the schema of the body of a chat, a completion or a prompt; None if the body names none."""
    try:
        data = json.loads(body)
    except ValueError:
        return _schema_of_prompt(body.decode(errors="replace"))
    if not isinstance(data, dict):
        return None
    modules = data.get("prompt_cache")
    named = modules.get("schema") if isinstance(modules, dict) else None
    _, _, of_model = str(data.get("model") or "").partition("@")
    document = data.get("prompt")
    return str(named or of_model) or (_schema_of_prompt(document) if isinstance(document, str) else None)


def _schema_of_prompt(document: str) -> str | None:
    try:
        return parse_prompt(document).schema if document.lstrip("\ufeff \t\r\n").startswith("<") else None
    except LanguageError:
        return None
