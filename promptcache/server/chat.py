"""`/v1/chat/completions` and `/v1/completions`: OpenAI's bodies as prompts. `/v1/embeddings` is refused.

Texts of messages and arguments are data: markup in them is never parsed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from promptcache.diagnostics import Span
from promptcache.language import CHAT_SCHEMA, Argument, Prompt, Reference
from promptcache.options import Body
from promptcache.planning import PromptSource, TemplateOptions
from promptcache.server.bodies import ChatBody, ModuleArguments, ModuleBody, PlainBody, given_options
from promptcache.server.chat_form import ChatForm, TextForm
from promptcache.server.errors import ApiError
from promptcache.server.read_body import read_body
from promptcache.server.respond import Endpoint, ServerRequest, respond
from promptcache.server.state import ServerState

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat(request: Request) -> Response:
    """Answer a chat, with modules of a schema before it or without."""
    state: ServerState = request.app.state.server
    return await respond(request, await read_body(request, ChatBody, lambda body: chat_request(body, state)))


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    """Continue a text or several, after the text of a schema if the model id names one."""
    state: ServerState = request.app.state.server
    return await respond(request, await read_body(request, PlainBody, lambda body: _plain_request(body, state)))


@router.post("/v1/embeddings", include_in_schema=False)
async def embeddings() -> Response:
    """Refuse embeddings."""
    message = "this server has no embeddings, because it serves one causal model: ask a server of an embedding model"
    raise ApiError(404, "not_found", message)


def _plain_request(body: PlainBody, state: ServerState) -> ServerRequest:
    if body.tools:
        raise ApiError(400, "unsupported_parameter", "'tools' need a chat: use /v1/chat/completions", param="tools")
    schema = state.schema_of(body.model)
    texts = {f"prompt[{index}]": text for index, text in enumerate(body.prompt)}
    if isinstance(body.prompt, str):
        texts = {"prompt": body.prompt}
    return ServerRequest(
        endpoint=Endpoint.COMPLETIONS,
        prompts=tuple(Prompt(schema or CHAT_SCHEMA, span=_place(place)).text(text) for place, text in texts.items()),
        schema=schema,
        body=body,
        options={**body.options, **given_options(body, Body.PROMPT_CACHE)},
        make_form=TextForm,
    )


def chat_request(body: ChatBody, state: ServerState) -> ServerRequest:
    """Return the request of a chat. Diagnostics of its prompt carry JSON paths.

    Raises:
        ApiError: There is no such model or schema, or two schemas are named.
        InvalidValue: A message is not supported; names its place.
    """
    prompt, schema = chat_prompt(body.model, body.prompt_cache, body.messages, state)
    return ServerRequest(
        endpoint=Endpoint.CHAT,
        prompts=(prompt,),
        make_form=ChatForm,
        schema=schema,
        body=body,
        options={
            **body.options,
            **given_options(body.prompt_cache, Body.PROMPT_CACHE),
            "template_kwargs": template_options(
                body.chat_template_kwargs, body.reasoning_effort, state, "reasoning_effort"
            ),
        },
    )


def template_options(given: TemplateOptions, effort: str | None, state: ServerState, place: str) -> TemplateOptions:
    """Return variables of the chat template, with `reasoning_effort`, if there is one.

    Raises:
        ApiError: The template does not read it; names the place of the effort.
    """
    if effort is None:
        return given
    given = given or {}
    low, high = (
        state.engine.tokenizer.render_chat(
            [{"role": "user", "content": "?"}], generation_prompt=True, options={**given, "reasoning_effort": each}
        )
        for each in ("low", "high")
    )
    if low == high:
        message = f"the chat template of this model does not read {place}; leave it out"
        raise ApiError(400, "unsupported_parameter", message, param=place)
    return {**given, "reasoning_effort": effort}


def chat_prompt(
    model: str, asked: ModuleBody, messages: Sequence[Any], state: ServerState, places: Sequence[str] | None = None
) -> tuple[PromptSource, str | None]:
    """Return the prompt of a chat, and the name of its schema.

    Args:
        messages: In the form of OpenAI's chats.
        places: The JSON path of each message, for diagnostics; None for those of `messages`.

    Raises:
        ApiError: There is no such model or schema, or two schemas are named.
        InvalidValue: A message is not supported; names its place.
    """
    named = state.schema_of(model)
    if named is not None and asked.schema_name not in (None, named):
        message = f"the model names the schema '{named}', and prompt_cache.schema another one"
        raise ApiError(400, "invalid_value", message, param="prompt_cache.schema")
    schema = named or asked.schema_name
    if schema is None and (asked.use or asked.fill):
        message = "modules and arguments need a schema: prompt_cache.schema, or the model id base@schema"
        raise ApiError(400, "invalid_value", message, param="prompt_cache.schema")
    if schema is not None and schema not in state.engine.schemas:
        raise state.no_schema(schema, param="prompt_cache.schema")
    read = Prompt.from_messages(CHAT_SCHEMA, messages).messages if messages or schema is None else ()
    if places is not None:
        read = tuple(replace(each, span=_place(place)) for each, place in zip(read, places, strict=True))
    used: Iterable[tuple[str, str, ModuleArguments | None]]
    if isinstance(asked.use, list):
        used = ((f"prompt_cache.use[{index}]", path, None) for index, path in enumerate(asked.use))
    else:
        used = ((f"prompt_cache.use.{path}", path, arguments) for path, arguments in asked.use.items())
    references = (
        Reference(
            path=path.removeprefix("/"), span=_place(at), absolute=True, arguments=_arguments(arguments or {}, at)
        )
        for at, path, arguments in used
    )
    prompt = Prompt(
        schema or CHAT_SCHEMA,
        references=tuple(references),
        arguments=_arguments(asked.fill, "prompt_cache.fill"),
        messages=read,
        span=_place("prompt_cache"),
    )
    return prompt, schema


def _arguments(given: Mapping[str, Any], place: str) -> tuple[Argument, ...]:
    return tuple(Argument(name=name, text=str(value), span=_place(f"{place}.{name}")) for name, value in given.items())


def _place(path: str) -> Span:
    return Span(path, 0, 0, 0, 0)
