"""The ASGI application: its routes, its start and its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.responses import Response

import promptcache
from promptcache.diagnostics import PromptCacheError, ServiceClosed
from promptcache.engine import Engine
from promptcache.server import chat, documents, responses, schemas
from promptcache.server.errors import install_handlers
from promptcache.server.gate import ApiKeys, Gate
from promptcache.server.pages import add_docs, add_page
from promptcache.server.schema_folder import SchemaFolder
from promptcache.server.state import ServerState
from promptcache.settings import ServerSettings

_LOG = logging.getLogger("promptcache.server.errors")

FOLDER_PERIOD_S = 1.0
"""The folder of schemas is read again this often: another server may have written there."""


def create_app(
    engine: Engine,
    settings: ServerSettings | None = None,
    *,
    keys: ApiKeys | None = None,
    schema_folder: SchemaFolder | None = None,
) -> FastAPI:
    """Return the application of an engine, whose schemas were added. It encodes them when it starts.

    Args:
        engine: The engine.
        settings: Its settings; None means the defaults.
        keys: Digests of the keys; None means that no key is needed, and that schemas cannot be changed.
        schema_folder: The folder in which schemas that clients add survive a restart; None forgets them.
    """
    settings, keys = settings or ServerSettings(), keys or ApiKeys()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        state = ServerState(engine, settings, schema_folder)
        app.state.server = state
        ending = asyncio.Event()
        keeping = asyncio.create_task(_keep_schemas(state, ending))
        try:
            yield
        finally:
            state.draining = True
            ending.set()
            await keeping
            await asyncio.to_thread(state.service.close)

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    install_handlers(app)
    app.state.settings = settings
    app.state.metrics_text = lambda: run_in_threadpool(app.state.server.metrics.text)  # counts files of the store
    app.add_middleware(Gate, keys=keys, settings=settings)
    if settings.allow_origin:  # outside of the gate, so that a browser may read refusals, too
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allow_origin,
            allow_methods=["GET", "POST", "PUT", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after", "x-should-retry"],
        )
    for router in (chat.router, responses.router, documents.router, schemas.member_router, schemas.router):
        app.include_router(router)
    app.add_api_route("/version", _version)
    app.add_api_route("/livez", _livez)
    app.add_api_route("/health", _health)
    app.add_api_route("/metrics", _metrics)
    add_page(app)
    if settings.docs or (settings.docs is None and not keys.clients):
        add_docs(app)
    return app


async def _keep_schemas(state: ServerState, ending: asyncio.Event) -> None:
    """Read the folder of schemas, encode all schemas, and follow the folder until the server ends."""
    await asyncio.to_thread(state.read_folder)
    try:
        reports = await asyncio.to_thread(state.warm)
    except ServiceClosed:
        return
    except PromptCacheError:
        _LOG.exception("schemas could not be encoded in advance; requests encode what they need")
    else:
        for fault in dict.fromkeys(fault for each in reports for fault in each.faults):
            state.metrics.store_fault()
            _LOG.warning("store: %s", fault)
    state.warming = False
    while state.schema_folder is not None:
        with suppress(TimeoutError):
            await asyncio.wait_for(ending.wait(), FOLDER_PERIOD_S)
            return
        await asyncio.to_thread(state.read_folder)


async def _version() -> dict[str, str]:
    """Return the version of the package."""
    return {"version": promptcache.__version__}


async def _livez() -> Response:
    """Say that the process is alive."""
    return PlainTextResponse("alive\n")


async def _health(request: Request) -> Response:
    """Say whether prompts are answered; otherwise 503 with the reason."""
    reason = request.app.state.server.reason
    if reason is not None:
        request.state.record["error"] = reason
    return JSONResponse({"status": reason or "ready"}, 503 if reason else 200)


async def _metrics(request: Request) -> Response:
    """Return the metrics in the form of Prometheus."""
    return Response(await request.app.state.metrics_text(), media_type="text/plain; version=0.0.4; charset=utf-8")
