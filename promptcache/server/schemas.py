"""`/v1/models` and `/v1/schemas`: what this server can answer, and changes of it with the admin key."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from starlette.responses import Response

from promptcache.language import CheckedSchema, print_schema
from promptcache.server.documents import describe, parse_document
from promptcache.server.errors import ApiError
from promptcache.server.read_body import XML, read_text
from promptcache.server.state import ServerState

router = APIRouter()


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
        return state.put_schema(parsed, document)

    return JSONResponse(_summary(await run_in_threadpool(add)), 201 if is_new else 200)


@router.delete("/v1/schemas/{name:path}")
async def delete_schema(request: Request, name: str) -> dict[str, Any]:
    """Remove a schema. Running requests keep it."""
    state = as_admin(request)
    find_schema(state, name)
    await run_in_threadpool(state.delete_schema, name)
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
