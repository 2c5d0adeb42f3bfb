"""`/v1/models` and `/v1/schemas`: what this server can answer, and changes of it with the admin key.

`/v1/schemas/{name}/members/{path}` are the members of collections. In the path of a request, the first `/members/`
divides the name of the schema from the path of a collection or member. A slash in the name can be written %2F.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from heapq import nsmallest
from io import BytesIO
from typing import Any
from urllib.parse import unquote

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from promptcache.diagnostics import SchemaError
from promptcache.language import CheckedSchema, parse_members, print_schema
from promptcache.server.documents import describe, parse_document
from promptcache.server.errors import ApiError
from promptcache.server.read_body import XML, read_text
from promptcache.server.state import ServerState


class _MemberRoute(APIRoute):
    """A route that takes a path only if `/members/` is written in it, and divides it there."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether the route takes a request, with the schema and the path behind it."""
        match, child = super().matches(scope)
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        name, found, path = raw.decode("latin-1").partition("/v1/schemas/")[2].partition("/members/")
        if match is Match.NONE or not found:
            return Match.NONE, {}
        return match, {**child, "path_params": {"name": unquote(name), "path": unquote(path).strip("/")}}


router = APIRouter()
member_router = APIRouter(route_class=_MemberRoute)
"""Comes before `router`, whose `/v1/schemas/{name:path}` takes its paths, too."""

_LINES = ("application/jsonl", "application/x-ndjson")
_MAX_LISTED = 1_000


@member_router.get("/v1/schemas/{name:path}/members/{path:path}")
async def members(
    request: Request, name: str, path: str, prefix: str = "", after: str = "", limit: int = 100
) -> dict[str, Any]:
    """Return a member with its text, or the names of a collection that begin with `prefix`, in order behind `after`."""
    state: ServerState = request.app.state.server
    checked = find_schema(state, name)
    if not 0 < limit <= _MAX_LISTED:
        raise ApiError(400, "invalid_value", f"limit is a number from 1 to {_MAX_LISTED}", param="limit")

    def found() -> dict[str, Any]:
        module = checked.modules.get(path)
        if module is None or module.collection is None:
            collection, _, member = path.rpartition("/")
            texts = state.engine.members(name, collection)
            if member not in texts:
                raise _no_member(path)
            return {"id": path, "object": "member", "schema": name, "text": texts[member]}
        texts = state.engine.members(name, path)
        names = nsmallest(limit + 1, (each for each in texts if each.startswith(prefix) and each > after))
        data = [{"id": f"{path}/{each}", "object": "member"} for each in names[:limit]]
        return {"object": "list", "data": data, "has_more": len(names) > limit}

    return await state.pools.documents.run(request, found)


@member_router.put("/v1/schemas/{name:path}/members/{path:path}")
async def put_member(request: Request, name: str, path: str) -> Response:
    """Add or replace a member; the body is its text. Running requests keep the old one."""
    state = as_admin(request)
    find_schema(state, name)
    text = await read_text(request, "text/plain")
    collection, _, member = path.rpartition("/")

    def add() -> bool:
        is_new = member not in state.engine.members(name, collection)
        state.engine.add_member(name, collection, member, text)
        return is_new

    is_new = await run_in_threadpool(add)
    return JSONResponse({"id": path, "object": "member", "schema": name}, 201 if is_new else 200)


@member_router.post("/v1/schemas/{name:path}/members/{path:path}")
async def post_members(request: Request, name: str, path: str) -> dict[str, Any]:
    """Add or replace members; the body is JSON lines. If a line is wrong, none is added."""
    state = as_admin(request)
    find_schema(state, name)
    lines = await read_text(request, *_LINES)

    def add() -> dict[str, Any]:
        known = state.engine.members(name, path)
        given = parse_members(BytesIO(lines.encode()), "body")
        if isinstance(given, list):
            raise SchemaError(given)
        replaced = sum(member in known for member in given)
        for member, item in given.items():
            state.engine.add_member(name, path, member, item.text)
        return {"object": "members", "added": len(given) - replaced, "replaced": replaced}

    return await run_in_threadpool(add)


@member_router.delete("/v1/schemas/{name:path}/members/{path:path}")
async def delete_member(request: Request, name: str, path: str) -> dict[str, Any]:
    """Remove a member. Running requests keep it."""
    state = as_admin(request)
    find_schema(state, name)
    collection, _, member = path.rpartition("/")
    if member not in state.engine.members(name, collection):
        raise _no_member(path)
    state.engine.remove_member(name, collection, member)
    return {"id": path, "object": "member", "deleted": True}


@router.get("/v1/models")
@router.get("/v1/models/", include_in_schema=False)
async def models(request: Request) -> dict[str, Any]:
    """List the base model, and a model for each schema."""
    return {"object": "list", "data": _models(request.app.state.server)}


@router.get("/v1/models/{model:path}")
async def model(request: Request, model: str) -> dict[str, Any]:
    """Return one model."""
    state: ServerState = request.app.state.server
    state.schema_of(model)
    return next(each for each in _models(state) if each["id"] == model)


@router.get("/v1/schemas")
async def schemas(request: Request) -> dict[str, Any]:
    """List the schemas."""
    state: ServerState = request.app.state.server
    return {"object": "list", "data": [_summary(each) for each in state.engine.schemas.values()]}


@router.get("/v1/schemas/{name:path}")
async def schema(request: Request, name: str) -> dict[str, Any]:
    """Return the modules and parameters of a schema, and its document."""
    state: ServerState = request.app.state.server
    checked = find_schema(state, name)

    def data() -> dict[str, Any]:
        return {**_summary(checked), **describe(checked), "xml": print_schema(checked.source)}

    return await state.pools.documents.run(request, data)


@router.put("/v1/schemas/{name:path}")
async def put_schema(request: Request, name: str) -> Response:
    """Add or replace a schema; the body is its document. It keeps the files of the old one, as running requests do."""
    state = as_admin(request)
    document = await read_text(request, *XML)
    is_new = name not in state.engine.schemas

    def add() -> CheckedSchema:
        parsed = parse_document(document, state.engine)
        if parsed.name != name:
            raise ApiError(
                400, "invalid_value", f"the document is the schema '{parsed.name}', not '{name}'", param="name"
            )
        folder = state.schema_folder
        with state.changing, nullcontext() if folder is None else folder.writing(name, document):
            return state.engine.add_schema(parsed)

    return JSONResponse(_summary(await run_in_threadpool(add)), 201 if is_new else 200)


@router.delete("/v1/schemas/{name:path}")
async def delete_schema(request: Request, name: str) -> dict[str, Any]:
    """Remove a schema. Running requests keep it."""
    state = as_admin(request)
    find_schema(state, name)

    def remove() -> None:
        with state.changing:
            if state.schema_folder is not None:
                state.schema_folder.remove(name)
            state.engine.remove_schema(name)

    await run_in_threadpool(remove)
    return {"id": name, "object": "schema", "deleted": True}


@router.post("/v1/schemas/{name:path}/warm")
async def warm(request: Request, name: str, members: bool = False, pairs: bool = False) -> dict[str, Any]:
    """Encode a schema, with `members` and `pairs` also members of its collections and modules behind others."""
    state = as_admin(request)
    find_schema(state, name)
    (report,) = await run_in_threadpool(state.warm, name, members=members, pairs=pairs)
    return asdict(report)


def as_admin(request: Request) -> ServerState:
    if not request.state.caller.is_admin:
        raise ApiError(403, "admin_key_needed", "changes of schemas need a key of --admin-key-file")
    state: ServerState = request.app.state.server
    return state


def find_schema(state: ServerState, name: str) -> CheckedSchema:
    checked = state.engine.schemas.get(name)
    if checked is None:
        raise state.no_schema(name)
    return checked


def _models(state: ServerState) -> list[dict[str, Any]]:
    base = {
        "id": state.settings.served_model_name,
        "object": "model",
        "created": 0,
        "owned_by": "promptcache",
        "parent": None,
        "max_model_len": state.engine.model.context_length,
    }
    made = [
        {**base, "id": f"{base['id']}@{each.name}", "parent": base["id"], "schema_version": each.version}
        for each in state.engine.schemas.values()
    ]
    return [base, *made]


def _summary(checked: CheckedSchema) -> dict[str, Any]:
    return {"id": checked.name, "object": "schema", "version": checked.version, "num_modules": len(checked.modules)}


def _no_member(path: str) -> ApiError:
    return ApiError(404, "member_not_found", f"there is no member '{path}' here", param="path")
