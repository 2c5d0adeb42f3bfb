"""`/v1/responses` of OpenAI's API: chats in another form, answered as those of `/v1/chat/completions`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Request
from pydantic import AfterValidator, Field, model_validator
from starlette.responses import Response

from promptcache.diagnostics import InvalidValue
from promptcache.options import Body
from promptcache.server.bodies import (
    GenerationBody,
    JSONSchemaBody,
    ModuleBody,
    StrictBody,
    WholeNumber,
    given_options,
    with_options,
    without_others,
)
from promptcache.server.chat import chat_prompt, template_options
from promptcache.server.errors import ApiError
from promptcache.server.read_body import checked_body, read_body, unsupported_type
from promptcache.server.respond import Endpoint, ServerRequest, respond
from promptcache.server.response_form import ResponseForm
from promptcache.server.state import Conversation, ServerState
from promptcache.structured import MAX_TOOLS, OutputFormat, read_output, read_tools

router = APIRouter()

_REFUSED: Mapping[str, tuple[object, ...]] = {
    "background": (False,),
    "conversation": (),
    "include": ([],),
    "max_tool_calls": (),
    "prompt": (),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
_IGNORED = ("service_tier", "prompt_cache_retention")


def _arguments(text: str) -> str:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError("JSON of an object is expected")
    return text


class _InputPart(StrictBody):
    type: str
    text: str
    annotations: Any = None
    logprobs: Any = None


class _InputItem(StrictBody):
    type: str
    id: str | None = None
    status: str | None = None


class _InputMessage(_InputItem):
    type: str = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Annotated[list[Any], Field(min_length=1)]


class _InputReasoning(_InputItem):
    summary: list[Any] = Field(default_factory=list)
    content: list[Any] = Field(default_factory=list)


class _InputCall(_InputItem):
    call_id: str
    name: str
    arguments: Annotated[str, AfterValidator(_arguments)]


class _InputResult(_InputItem):
    call_id: str
    output: str | list[Any]


_ITEMS: Mapping[str, type[_InputItem]] = {
    "message": _InputMessage,
    "reasoning": _InputReasoning,
    "function_call": _InputCall,
    "function_call_output": _InputResult,
}


class _ResponseTool(StrictBody):
    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _TextFormat(JSONSchemaBody):
    type: Literal["text", "json_object", "json_schema"] = "text"

    @property
    def output(self) -> OutputFormat | None:
        if self.type == "text":
            return None
        return read_output({"type": "object"} if self.type == "json_object" else self.schema_object)


class _TextOptions(StrictBody):
    format: _TextFormat = Field(default_factory=_TextFormat)


class _ReasoningOptions(StrictBody):
    effort: Annotated[str, Field(max_length=32)] | None = None


class _ResponseStreamOptions(StrictBody):
    include_obfuscation: bool = False


@with_options(Body.ANSWER)
class ResponsesBody(StrictBody):
    """The body of `/v1/responses`."""

    model: str
    input: str | Annotated[list[Any], Field(min_length=1)]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    max_output_tokens: WholeNumber | None = Field(None, ge=1)
    text: _TextOptions = Field(default_factory=_TextOptions)
    tools: Annotated[list[Any], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    tool_choice: str | dict[str, Any] = "auto"
    reasoning: _ReasoningOptions = Field(default_factory=_ReasoningOptions)
    stream: bool | None = None
    stream_options: _ResponseStreamOptions | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] = Field(default_factory=dict)
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache: ModuleBody = Field(default_factory=ModuleBody)

    @model_validator(mode="before")
    @classmethod
    def _without_others(cls, data: Any) -> Any:
        return without_others(data, _REFUSED, _IGNORED)


class _ResponseSettings(GenerationBody):
    format_name: ClassVar[str] = "text.format"

    @property
    def limit_name(self) -> str:
        return "max_output_tokens"


@router.post("/v1/responses")
async def responses(request: Request) -> Response:
    """Answer an input, behind an earlier response or not."""
    state, caller = request.app.state.server, request.state.caller.salt
    return await respond(request, await read_body(request, ResponsesBody, lambda body: _request(body, state, caller)))


def _request(body: ResponsesBody, state: ServerState, caller: str | None) -> ServerRequest:
    earlier: Conversation = ()
    if (previous := body.previous_response_id) is not None:
        found = state.responses.get(caller, previous)
        if found is None:
            message = (
                f"there is no response '{previous}' here: it had store=false, or another key, or is older than the "
                f"last {state.responses.max_responses} responses or the start of the server; "
                "send the whole conversation as 'input'"
            )
            raise ApiError(404, "previous_response_not_found", message, param="previous_response_id")
        earlier = found
    given = _chat_messages(body.input)
    head = {"instructions": {"role": "system", "content": body.instructions}} if body.instructions else {}
    messages = [*head.values(), *earlier, *given.values()]
    places = [*head, *(["previous_response_id"] * len(earlier)), *given]
    prompt, schema = chat_prompt(body.model, body.prompt_cache, messages, state, places)
    tools, choice = _tools(body.tools), body.tool_choice
    if isinstance(choice, dict):
        if choice.get("type") != "function":
            raise unsupported_type("tool_choice", choice.get("type"), "only 'function' is")
        if not isinstance(choice.get("name"), str):
            raise ApiError(400, "invalid_value", "tool_choice.name is missing", param="tool_choice.name")
        choice = {"type": "function", "function": {"name": choice["name"]}}
    fields = {
        **{name: getattr(body, name) for name in ResponsesBody.model_fields if name in GenerationBody.model_fields},
        "max_tokens": body.max_output_tokens,
        "tools": tools,
        "tool_choice": choice,
        "stream_options": None,
    }
    generation = _ResponseSettings.model_validate(fields)

    def keep(response_id: str, answer: Mapping[str, Any]) -> None:
        if body.store:
            state.responses.put(caller, response_id, [*earlier, *given.values(), answer])

    def num_tokens(text: str) -> int:
        return len(state.engine.tokenizer.tokenize(text))

    repeated = (
        *("instructions", "max_output_tokens", "metadata", "previous_response_id", "store"),
        *("temperature", "tool_choice", "tools", "top_p", "user"),
    )
    echo = {
        **{name: getattr(body, name) for name in repeated},
        "parallel_tool_calls": given_options(body, Body.ANSWER).get("parallel_tool_calls", True),
        "reasoning": {"effort": body.reasoning.effort, "summary": None},
        "text": {"format": body.text.format.model_dump(by_alias=True, exclude_unset=True) or {"type": "text"}},
        "truncation": "disabled",
    }
    return ServerRequest(
        endpoint=Endpoint.RESPONSES,
        prompts=(prompt,),
        make_form=partial(ResponseForm, echo=echo, keep=keep, num_tokens=num_tokens),
        schema=schema,
        body=generation,
        options={
            **generation.options,
            **given_options(body.prompt_cache, Body.PROMPT_CACHE),
            "template_kwargs": template_options(None, body.reasoning.effort, state, "reasoning.effort"),
            "output": body.text.format.output,
        },
    )


def _tools(given: Sequence[Any]) -> list[dict[str, Any]]:
    """Return tools in the form of chats, where the fields of a function are an object of its own."""
    made = []
    for index, tool in enumerate(given):
        place = f"tools[{index}]"
        if isinstance(tool, dict) and tool.get("type") != "function":
            raise unsupported_type(place, tool.get("type"), "only tools of type 'function' are")
        fields = checked_body(_ResponseTool, tool, place).model_dump(exclude={"type", "strict"}, exclude_none=True)
        made.append({"type": "function", "function": fields})
    try:
        read_tools(made)
    except InvalidValue as error:
        raise ApiError(400, "invalid_value", str(error).replace(".function.", "."), param="tools") from None
    return made


def _chat_messages(given: str | Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Return the items of an input as messages in the form of chats, by their JSON path.

    Reasoning, a text and calls of the assistant that follow each other are one message.
    """
    if isinstance(given, str):
        return {"input": {"role": "user", "content": given}}
    made: dict[str, dict[str, Any]] = {}

    def turn(*later: str) -> dict[str, Any]:
        """Return the last message if it is the assistant's and has none of these fields yet, else a new one."""
        last = next(reversed(made.values()), None)
        if last is None or last["role"] != "assistant" or any(last[each] for each in later):
            last = made[place] = {"role": "assistant", "content": "", "tool_calls": []}
        return last

    for index, each in enumerate(given):
        place = f"input[{index}]"
        kind = each.get("type", "message") if isinstance(each, dict) else "message"
        if not isinstance(kind, str) or kind not in _ITEMS:
            raise unsupported_type(place, kind, f"items of type {', '.join(map(repr, _ITEMS))} are")
        match checked_body(_ITEMS[kind], each, place):
            case _InputMessage(role="assistant") as item:
                turn("content", "tool_calls")["content"] = _text(item.content, f"{place}.content", "output_text")
            case _InputMessage() as item:
                made[place] = {"role": item.role, "content": _text(item.content, f"{place}.content", "input_text")}
            case _InputReasoning() as item:
                reasoning = _text(item.content, f"{place}.content", "reasoning_text")
                made[place] = {"role": "assistant", "content": "", "reasoning_content": reasoning, "tool_calls": []}
            case _InputCall() as item:
                function = {"name": item.name, "arguments": item.arguments}
                turn()["tool_calls"].append({"id": item.call_id, "type": "function", "function": function})
            case _InputResult() as item:
                content = _text(item.output, f"{place}.output", "input_text")
                made[place] = {"role": "tool", "tool_call_id": item.call_id, "content": content}
    return made


def _text(content: str | Sequence[Any], place: str, kind: str) -> str:
    """Return the text of a field that is a text or a list of parts of one type."""
    if isinstance(content, str):
        return content
    text = ""
    for index, part in enumerate(content):
        at = f"{place}[{index}]"
        if isinstance(part, dict) and part.get("type") != kind:
            raise unsupported_type(at, part.get("type"), f"parts of type '{kind}' are expected here")
        text += checked_body(_InputPart, part, at).text
    return text
