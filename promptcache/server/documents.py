"""`/v1/prompts`, `/v1/check` and `/v1/plan`: prompt documents, answered, checked or planned.

Documents come as `application/xml`, or in JSON with options. They are parsed as text, and no file is opened for
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from starlette.responses import Response

from promptcache.diagnostics import (
    ContextLengthExceeded,
    Diagnostic,
    LanguageError,
    SchemaError,
    UnknownSchema,
    as_data,
    diagnostic,
)
from promptcache.engine import Engine
from promptcache.language import (
    CHAT_SCHEMA,
    CheckedSchema,
    CheckedUnion,
    Prompt,
    ReadFiles,
    Schema,
    check_schema,
    module_docs,
    parse_prompt,
    parse_schema,
    resolve_prompt,
    root_tag,
    tool_definitions,
    walk_checked,
)
from promptcache.layout import Plan, check_positions
from promptcache.options import Body
from promptcache.picture import html_page, view
from promptcache.planning import ServedSchema, serve_schema
from promptcache.server.bodies import ChatBody, CheckBody, PromptBody, given_options
from promptcache.server.chat import chat_request
from promptcache.server.chat_form import ChatForm
from promptcache.server.errors import ApiError
from promptcache.server.read_body import checked_body, read_data
from promptcache.server.respond import Endpoint, ServerRequest, planned, respond
from promptcache.server.state import ServerState

router = APIRouter()


@router.post("/v1/prompts")
async def prompts(request: Request) -> Response:
    """Answer a prompt document."""
    state: ServerState = request.app.state.server
    body = await read_data(request, partial(checked_body, PromptBody), document="prompt")
    return await respond(request, await state.pools.plan(request, lambda: _document_request(body, state)))


@router.post("/v1/check")
async def check(request: Request) -> dict[str, Any]:
    """Return the diagnostics of a document: a schema by itself, a prompt against its schema."""
    body = await read_data(request, partial(checked_body, CheckBody), document="document")
    state: ServerState = request.app.state.server
    return await state.pools.documents.run(request, lambda: _checked_data(body, state))


@router.post("/v1/layout.html")
async def layout(request: Request) -> Response:
    """Draw the layout of a schema document, or what a prompt document reuses and prefills."""
    body = await read_data(request, partial(checked_body, CheckBody), document="document")
    state: ServerState = request.app.state.server

    def draw() -> str:
        found = _open(body, state)
        return html_page(view(found if isinstance(found, Plan) else found.layout))

    drawn = await state.pools.documents.run(request, draw)
    policy = "default-src 'none'; style-src 'unsafe-inline'"  # it runs nothing, wherever it is shown
    return HTMLResponse(drawn, headers={"content-security-policy": policy})


@router.post("/v1/plan")
async def plan(request: Request) -> dict[str, Any]:
    """Return what a prompt would reuse and prefill. A request that would not be answered is refused."""
    state: ServerState = request.app.state.server

    def read(data: dict[str, Any]) -> ChatBody | PromptBody:
        is_chat = "messages" in data and "prompt" not in data
        return checked_body(ChatBody, data) if is_chat else checked_body(PromptBody, data)

    body = await read_data(request, read, document="prompt")

    def data() -> dict[str, Any]:
        question = chat_request(body, state) if isinstance(body, ChatBody) else _document_request(body, state)
        made = planned(question, state)
        schema = made.selection.schema
        return {
            "schema": None if schema.is_chat else schema.name,
            **made.counts,
            "warnings": [{"code": each.code, "message": each.message} for each in made.warnings],
            "modules": [
                {"module": name, "num_tokens": count} for name, count in made.num_reused_tokens_by_module.items()
            ],
            "prefill": [
                {"start": each.start, "stop": each.stop, "origin": each.origin, "parameter": each.parameter}
                for each in made.new
            ],
        }

    return await state.pools.documents.run(request, data)


def _document_request(body: PromptBody, state: ServerState) -> ServerRequest:
    """Return the request of a document, whose schema is the one that the model id names, if it names one."""
    parsed = parse_prompt(body.prompt)
    if body.messages:
        later = Prompt.from_messages(CHAT_SCHEMA, body.messages).messages
        parsed = replace(parsed, messages=(*parsed.messages, *later))
    if body.model is not None and state.schema_of(body.model) not in (None, parsed.schema):
        raise ApiError(400, "invalid_value", "the model names another schema than the prompt", param="model")
    return ServerRequest(
        endpoint=Endpoint.PROMPTS,
        make_form=ChatForm,
        prompts=(parsed,),
        schema=parsed.schema,
        body=body,
        options={**body.options, **given_options(body, Body.PROMPT_CACHE)},
        reuse=body.reuse,
    )


def _checked_data(body: CheckBody, state: ServerState) -> dict[str, Any]:
    """Return what is wrong with a document; for a valid schema also its description, for a valid prompt its tools."""
    found: Sequence[Diagnostic]
    more: dict[str, Any] = {}
    try:
        opened = _open(body, state)
    except LanguageError as fault:
        kind, found = "schema" if isinstance(fault, SchemaError) else "prompt", fault.diagnostics
    except ContextLengthExceeded as fault:
        prompt = parse_prompt(body.document)
        kind, found = "prompt", (*prompt.warnings, diagnostic("PC504", str(fault), prompt.span))
    else:
        if isinstance(opened, ServedSchema):
            kind, found = "schema", opened.schema.warnings
            more = {"schema": {"id": opened.schema.name, **describe(opened.schema)}}
        else:
            kind, found = "prompt", parse_prompt(body.document).warnings
            more = {"tools": tool_definitions(opened.selection)}
            try:
                check_positions(opened, state.engine.model.context_length, 1)
            except ContextLengthExceeded as fault:
                found = (*found, diagnostic("PC504", str(fault), opened.selection.span))
    valid = not any(each.severity == "error" for each in found)
    return {"kind": kind, "valid": valid, "diagnostics": list(map(as_data, found)), **more}


def _open(body: CheckBody, state: ServerState) -> Plan | ServedSchema:
    """Return the plan of a prompt document, or the layout of a schema document.

    Raises:
        SchemaError: The schema document is not valid.
        PromptError: The prompt document is not valid.
        ApiError: There is no such schema, or the schema that was sent with a prompt is not valid.
    """
    engine = state.engine
    try:
        prompt = parse_prompt(body.document)
    except LanguageError as fault:
        if not any(each.code == "PC107" for each in fault.diagnostics):  # it begins with another element
            raise
        return _served(body.document, engine)
    if body.schema_text is not None:
        try:
            given = _served(body.schema_text, engine)
        except SchemaError as fault:
            raise ApiError(400, fault.diagnostics[0].code, str(fault), param="schema") from None
        if given.schema.name == prompt.schema:
            return given.plan(resolve_prompt(prompt, given.schema))
    try:
        return engine.plan(prompt)
    except UnknownSchema as error:
        raise ApiError(404, "schema_not_found", str(error)) from None


def parse_document(document: str, engine: Engine) -> Schema:
    """Parse the schema document of a client.

    It may name the files of the served schema of the same name. They have the content that was read with that schema,
    so a client cannot read or find any other file.

    Raises:
        SchemaError: All faults of XML or structure.
    """
    root = root_tag(document.encode())
    served = None if root is None else engine.schemas.get(root.attributes.get("name", ""))
    return parse_schema(document, folder=None if served is None else ReadFiles.of(served.source))


def _served(document: str, engine: Engine) -> ServedSchema:
    return serve_schema(
        check_schema(parse_document(document, engine)),
        engine.tokenizer,
        engine.model.context_length,
        placement=engine.positions,
    )


def describe(checked: CheckedSchema) -> dict[str, Any]:
    """Return the modules and unions of a schema. The module "" has the parameters outside of modules.

    Members of collections are no part of it, because there can be 100,000.
    """
    docs = dict(module_docs(checked))
    modules = []
    for path in ("", *checked.modules):
        module = checked.modules.get(path)
        collection = None if module is None else module.collection
        limits = None if collection is None else {"min": collection.minimum, "max": collection.maximum}
        parameters = [
            {
                "name": each.name,
                "length": each.length,
                "type": each.type,
                "choices": list(each.choices),
                "required": each.required,
                "default": each.default,
            }
            for each in checked.parameters[path].values()
        ]
        modules.append(
            {
                "path": path,
                "required": module is not None and module.required,
                "doc": docs.get(path),
                "parameters": parameters,
                "collection": limits,
            }
        )
    unions = [
        {
            "name": union.name,
            "required": union.required,
            "default": union.default,
            "members": [member.path for member in union.members],
        }
        for union in walk_checked(checked.children)
        if isinstance(union, CheckedUnion)
    ]
    return {"modules": modules, "unions": unions}
