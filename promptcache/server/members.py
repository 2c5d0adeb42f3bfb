"""`/v1/schemas/{name}/members/{path}`: the members of collections, and changes of them with the admin key.

In the path of a request, the first `/members/` divides the name of the schema from the path of a collection or member.
A slash in the name of a schema can be written %2F.
"""

from __future__ import annotations

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
from promptcache.language import parse_members
from promptcache.server.errors import ApiError
from promptcache.server.read_body import read_text
from promptcache.server.schemas import as_admin, find_schema
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


router = APIRouter(route_class=_MemberRoute)

_LINES = ("application/jsonl", "application/x-ndjson")
_MAX_LISTED = 1_000


@router.get("/v1/schemas/{name:path}/members/{path:path}")
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


@router.put("/v1/schemas/{name:path}/members/{path:path}")
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


@router.post("/v1/schemas/{name:path}/members/{path:path}")
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


@router.delete("/v1/schemas/{name:path}/members/{path:path}")
async def delete_member(request: Request, name: str, path: str) -> dict[str, Any]:
    """Remove a member. Running requests keep it."""
    state = as_admin(request)
    find_schema(state, name)
    collection, _, member = path.rpartition("/")
    if member not in state.engine.members(name, collection):
        raise _no_member(path)
    state.engine.remove_member(name, collection, member)
    return {"id": path, "object": "member", "deleted": True}


def _no_member(path: str) -> ApiError:
    return ApiError(404, "member_not_found", f"there is no member '{path}' here", param="path")
