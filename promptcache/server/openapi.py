"""`/openapi.json` and `/docs`: the endpoints and their bodies, as OpenAPI, and as a page without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, TypeAlias

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse
from lxml import html
from lxml.html import builder as E
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

import promptcache
from promptcache.server.bodies import ChatBody, CheckBody, PlainBody, PromptBody, StrictBody
from promptcache.server.page_files import PAGE_HEADERS
from promptcache.server.responses import ResponsesBody

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


def add_docs(app: FastAPI) -> None:
    """Add `/openapi.json` and `/docs` to an application that has its other routes; the first request makes them."""

    @cache
    def document() -> dict[str, Any]:
        return _document(app)

    def openapi() -> Response:
        return JSONResponse(document())

    def docs() -> Response:
        return HTMLResponse(_page(document()), headers=PAGE_HEADERS)

    app.add_api_route("/openapi.json", openapi, include_in_schema=False)
    app.add_api_route("/docs", docs, include_in_schema=False)


def _document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document. The bodies come from here, because FastAPI does not read them."""
    document = get_openapi(title="Prompt Cache", version=promptcache.__version__, routes=app.routes)
    names, made = models_json_schema(
        [(each, "validation") for each in dict.fromkeys(_BODIES.values())], ref_template=f"{_PLACE}{{model}}"
    )
    document["components"] = {"schemas": made["$defs"]}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)  # the server answers 400
            if (body := _BODIES.get(path)) is not None:
                content = {"application/json": {"schema": names[body, "validation"]}}
                operation["requestBody"] = {"required": True, "content": content}
    return document


_Row: TypeAlias = tuple[str, Mapping[str, Any], str]
"""Name, type and words of a parameter or field."""


def _page(document: Mapping[str, Any]) -> str:
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
