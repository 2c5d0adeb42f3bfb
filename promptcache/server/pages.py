"""Pages for browsers: `/` with the files under `/page/`, and `/docs`, the endpoints and bodies of `/openapi.json`.

Other clients get a list of endpoints at `/`. These files are the same for everyone, so they need no key. The page asks
for a key once the server refuses a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from lxml import html
from lxml.html import builder as E
from pydantic.json_schema import models_json_schema
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

import promptcache
from promptcache.language import vocabulary
from promptcache.picture import HTML_STYLE
from promptcache.server.bodies import ChatBody, CheckBody, PlainBody, PromptBody, StrictBody
from promptcache.server.responses import ResponsesBody

_FOLDER = Path(__file__).parent / "page"
_HEADERS = {"cache-control": "no-cache", "referrer-policy": "no-referrer", "x-content-type-options": "nosniff"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing comes from other hosts, and nothing is inline."""

_PAGE_HEADERS = {**_HEADERS, "content-security-policy": _POLICY}
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

_BODIES: Mapping[str, type[StrictBody]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": PlainBody,
    "/v1/responses": ResponsesBody,
    "/v1/prompts": PromptBody,
    "/v1/plan": PromptBody,
    "/v1/check": CheckBody,
    "/v1/layout.html": CheckBody,
}
_PLACE = "#/components/schemas/"

_Row: TypeAlias = tuple[str, Mapping[str, Any], str]
"""Name, type and words of a parameter or field."""


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
        return HTMLResponse(document, headers={**_PAGE_HEADERS, "vary": "accept"})

    async def style() -> Response:
        return Response(HTML_STYLE, media_type="text/css", headers=_HEADERS)

    async def elements() -> Response:
        return JSONResponse(vocabulary(), headers=_HEADERS)

    for path, answer in (("/", root), ("/page/picture.css", style), ("/page/elements.json", elements)):
        app.add_api_route(path, answer, include_in_schema=False)
    app.mount("/page", _PageFiles(directory=_FOLDER))


def add_docs(app: FastAPI) -> None:
    """Add `/openapi.json` and `/docs` to an application that has its other routes; the first request makes them."""

    @cache
    def document() -> dict[str, Any]:
        """Return the OpenAPI document. The bodies come from here, because FastAPI does not read them."""
        made = get_openapi(title="Prompt Cache", version=promptcache.__version__, routes=app.routes)
        names, bodies = models_json_schema(
            [(each, "validation") for each in dict.fromkeys(_BODIES.values())], ref_template=f"{_PLACE}{{model}}"
        )
        made["components"] = {"schemas": bodies["$defs"]}
        for path, operations in made["paths"].items():
            for operation in operations.values():
                operation["responses"].pop("422", None)  # the server answers 400
                if (body := _BODIES.get(path)) is not None:
                    content = {"application/json": {"schema": names[body, "validation"]}}
                    operation["requestBody"] = {"required": True, "content": content}
        return made

    def openapi() -> Response:
        return JSONResponse(document())

    def docs() -> Response:
        return HTMLResponse(_docs_page(document()), headers=_PAGE_HEADERS)

    app.add_api_route("/openapi.json", openapi, include_in_schema=False)
    app.add_api_route("/docs", docs, include_in_schema=False)


def _docs_page(document: Mapping[str, Any]) -> str:
    body = E.BODY(E.HEADER(E.H1("Prompt Cache"), E.A("page", href="./"), E.A("openapi.json", href="openapi.json")))
    for path, operations in document["paths"].items():
        for method, each in operations.items():
            rows = [(found["name"], found["schema"], found["in"]) for found in each.get("parameters", ())]
            if "requestBody" in each:
                rows.append(("body", each["requestBody"]["content"]["application/json"]["schema"], ""))
            body.extend(_section(f"{method.upper()} {path}", each["description"], rows))
    for name, schema in document["components"]["schemas"].items():
        rows = [(field, found, found.get("description", "")) for field, found in schema["properties"].items()]
        body.extend(_section(name, schema.get("description", ""), rows))
    head = E.HEAD(
        E.META(charset="utf-8"),
        E.META(name="viewport", content="width=device-width, initial-scale=1"),
        E.TITLE("Prompt Cache: endpoints"),
        E.LINK(rel="stylesheet", href="page/page.css"),
    )
    return html.tostring(E.HTML(head, body, lang="en"), encoding="unicode", doctype="<!DOCTYPE html>")


def _section(title: str, words: str, rows: Iterable[_Row]) -> Iterator[html.HtmlElement]:
    yield E.H3(title, id=title)
    yield E.P(words)
    cells = (E.TR(E.TD(name), E.TD(*_type(schema)), E.TD(more)) for name, schema, more in rows)
    yield E.DIV(E.TABLE(*cells), {"class": "scroll"})


def _type(schema: Mapping[str, Any]) -> Iterator[html.HtmlElement | str]:
    """Yield the type of a value, with links to the bodies that it names."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_PLACE)
        yield E.A(name, href=f"#{name}")
    elif choices := [each for each in schema.get("anyOf", ()) if each.get("type") != "null"]:
        for index, each in enumerate(choices):
            yield from (" or ", *_type(each)) if index else _type(each)
    else:
        yield " | ".join(schema.get("enum", ())) or schema.get("type", "any")
        if schema.get("items"):
            yield from (" of ", *_type(schema["items"]))
