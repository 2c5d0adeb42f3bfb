"""The page for browsers: `/` and the files under `/page/`. Other clients get a list of endpoints at `/`.

The files are the same for everyone, so they need no key. The page asks for a key once the server refuses a request.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from promptcache.language import vocabulary
from promptcache.picture import HTML_STYLE

_FOLDER = Path(__file__).parent / "page"
_HEADERS = {
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing comes from other hosts, and nothing is inline."""

PAGE_HEADERS = {**_HEADERS, "content-security-policy": _POLICY}
"""Headers of HTML pages."""

_ENDPOINTS = """\
Prompt Cache serves the API of OpenAI here. A browser gets a page to try it.

POST /v1/chat/completions        a chat; "prompt_cache": {"schema", "use", "fill"} puts modules before it
POST /v1/completions             the continuation of a text
POST /v1/responses               the answer to an input, behind an earlier response or not
POST /v1/prompts                 the answer to a prompt document
POST /v1/check, /v1/plan         diagnostics of a document; what a prompt would reuse
POST /v1/layout.html             the picture of a schema or prompt
GET  /v1/models, /v1/schemas     what can be asked
GET  /livez, /health, /metrics   the state of the server
GET  /version, /docs             its version; the endpoints in full, also as /openapi.json
"""


class _PageFiles(StaticFiles):
    """The files of the page, with headers that keep a browser from guessing their type."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update(_HEADERS)
        return response


def add_page(app: FastAPI) -> None:
    """Add the page and its files to an application."""
    document = (_FOLDER / "index.html").read_text(encoding="utf-8")

    async def root(request: Request) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            return PlainTextResponse(_ENDPOINTS, headers={"vary": "accept"})
        return HTMLResponse(document, headers={**PAGE_HEADERS, "vary": "accept"})

    async def style() -> Response:
        return Response(HTML_STYLE, media_type="text/css", headers=_HEADERS)

    async def elements() -> Response:
        return JSONResponse(vocabulary(), headers=_HEADERS)

    for path, answer in (("/", root), ("/page/picture.css", style), ("/page/elements.json", elements)):
        app.add_api_route(path, answer, include_in_schema=False)
    app.mount("/page", _PageFiles(directory=_FOLDER))
