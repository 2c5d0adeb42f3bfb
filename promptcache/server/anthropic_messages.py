"""`/v1/messages`: chats in the form of Anthropic's API, answered as those of `/v1/chat/completions`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field, model_validator
from starlette.responses import Response

from promptcache.runtime import SplitText
from promptcache.server.answer_form import AnswerForm, ServedAnswer, event_text, json_text
from promptcache.server.answers import Endpoint, ServerRequest, respond
from promptcache.server.bodies import checked_part, read_body, unsupported_type
from promptcache.server.chat import chat_prompt
from promptcache.server.errors import ApiError
from promptcache.server.models import (
    MAX_STOP_STRINGS,
    FunctionBody,
    GenerationBody,
    ModuleBody,
    StopString,
    StrictBody,
    WholeNumber,
    definitions,
    without_others,
)
from promptcache.server.state import ServerState
from promptcache.structured import MAX_TOOLS

router = APIRouter()

_REFUSED: Mapping[str, tuple[object, ...]] = {
    "thinking": ({"type": "disabled"},),
    "mcp_servers": ([],),
    "container": (),
    "context_management": (),
    "output_config": ({},),
    "output_format": (),
}
_IGNORED = ("cache_control", "service_tier")


class _Block(StrictBody):
    type: str
    cache_control: Any = None


class _TextBlock(_Block):
    text: str
    citations: Any = None


class _ThinkingBlock(_Block):
    thinking: str
    signature: str | None = None


class _ToolUseBlock(_Block):
    id: str
    name: str
    input: dict[str, Any]


class _ToolResultBlock(_Block):
    tool_use_id: str
    content: str | list[Any] | None = None
    is_error: bool | None = None


class _MessageBody(StrictBody):
    role: Literal["user", "assistant"]
    content: str | Annotated[list[Any], Field(min_length=1)]


class _ToolBody(StrictBody):
    type: Literal["custom"] = "custom"
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    cache_control: Any = None


class _ToolChoiceBody(StrictBody):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class _MetadataBody(StrictBody):
    user_id: str | None = None


class MessagesBody(StrictBody):
    """The body of `/v1/messages`."""

    model: str
    messages: Annotated[list[Any], Field(min_length=1)]
    max_tokens: WholeNumber = Field(ge=1)
    system: str | list[Any] | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: WholeNumber | None = Field(None, ge=0)
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)] | None = None
    stream: bool | None = None
    tools: Annotated[list[Any], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: _ToolChoiceBody | None = None
    metadata: _MetadataBody | None = None
    prompt_cache: ModuleBody = Field(default_factory=ModuleBody)

    @model_validator(mode="before")
    @classmethod
    def _without_others(cls, data: Any) -> Any:
        return without_others(data, _REFUSED, _IGNORED)


@router.post("/v1/messages")
async def messages(request: Request) -> Response:
    """Answer a chat in the form of Anthropic's API."""
    state: ServerState = request.app.state.server
    return await respond(request, await read_body(request, MessagesBody, lambda body: _request(body, state)))


def _request(body: MessagesBody, state: ServerState) -> ServerRequest:
    given = _chat_messages(body)
    prompt, schema = chat_prompt(body.model, body.prompt_cache, [*given.values()], state, [*given])
    choice = body.tool_choice
    options = {
        "max_tokens": body.max_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "stop": body.stop_sequences,
        "stream": body.stream,
        "tools": _definitions(body.tools or ()),
        "tool_choice": None if choice is None else _chat_choice(choice),
        "parallel_tool_calls": None if choice is None else not choice.disable_parallel_tool_use,
        "user": None if body.metadata is None else body.metadata.user_id,
    }
    generation = GenerationBody.model_validate(options)
    return ServerRequest(
        endpoint=Endpoint.MESSAGES,
        prompts=(prompt,),
        make_form=_MessageForm,
        schema=schema,
        body=generation,
        repair=body.prompt_cache.repair,
        positions=body.prompt_cache.positions,
        deterministic=body.prompt_cache.deterministic,
        form=generation.form,
    )


def _chat_choice(choice: _ToolChoiceBody) -> str | dict[str, Any]:
    if choice.type != "tool":
        return "required" if choice.type == "any" else choice.type
    if choice.name is None:
        raise ApiError(400, "invalid_value", "tool_choice.name is missing", param="tool_choice.name")
    return {"type": "function", "function": {"name": choice.name}}


def _definitions(tools: Sequence[Any]) -> list[dict[str, Any]] | None:
    read = [_tool(each, f"tools[{index}]") for index, each in enumerate(tools)]
    return definitions(
        [FunctionBody(name=each.name, description=each.description, parameters=each.input_schema) for each in read]
    )


def _tool(tool: Any, place: str) -> _ToolBody:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if kind not in (None, "custom"):
        raise unsupported_type(place, kind, "only tools with an input_schema are")
    return checked_part(_ToolBody, tool, place)


def _chat_messages(body: MessagesBody) -> dict[str, dict[str, Any]]:
    """Return the messages in the form of chats, by their JSON path."""
    made: dict[str, dict[str, Any]] = {}
    if body.system:
        made["system"] = {"role": "system", "content": _text(body.system, "system")}
    for index, each in enumerate(body.messages):
        place = f"messages[{index}]"
        message = checked_part(_MessageBody, each, place)
        if isinstance(message.content, str):
            made[place] = {"role": message.role, "content": message.content}
        elif message.role == "assistant":
            made[place] = _assistant(message.content, f"{place}.content")
        else:
            made |= _user(message.content, f"{place}.content")
    return made


def _user(parts: Sequence[Any], place: str) -> dict[str, dict[str, Any]]:
    """Return the messages of a turn of the user: each result of a tool is one, and each text between them."""
    made: dict[str, dict[str, Any]] = {}
    text: dict[str, Any] | None = None  # the message that further texts belong to
    for at, part in _parts(parts, place, {"text": _TextBlock, "tool_result": _ToolResultBlock}):
        if isinstance(part, _ToolResultBlock):
            content = "" if part.content is None else _text(part.content, f"{at}.content")
            made[at] = {"role": "tool", "tool_call_id": part.tool_use_id, "content": content}
            text = None
        elif isinstance(part, _TextBlock):
            if text is None:
                text = made[at] = {"role": "user", "content": ""}
            text["content"] += part.text
    return made


def _assistant(parts: Sequence[Any], place: str) -> dict[str, Any]:
    text = reasoning = ""
    calls: list[dict[str, Any]] = []
    for _, part in _parts(parts, place, {"text": _TextBlock, "thinking": _ThinkingBlock, "tool_use": _ToolUseBlock}):
        match part:
            case _TextBlock():
                text += part.text
            case _ThinkingBlock():
                reasoning += part.thinking
            case _ToolUseBlock():
                function = {"name": part.name, "arguments": part.input}
                calls.append({"id": part.id, "type": "function", "function": function})
    return {"role": "assistant", "content": text, "reasoning_content": reasoning, "tool_calls": calls}


def _text(content: str | Sequence[Any], place: str) -> str:
    """Return the text of a field that is a text or a list of text blocks."""
    if isinstance(content, str):
        return content
    return "".join(
        part.text for _, part in _parts(content, place, {"text": _TextBlock}) if isinstance(part, _TextBlock)
    )


def _parts(parts: Sequence[Any], place: str, kinds: Mapping[str, type[_Block]]) -> Iterator[tuple[str, _Block]]:
    """Yield the content blocks of a list with their places."""
    for index, part in enumerate(parts):
        at = f"{place}[{index}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if isinstance(kind, str) and kind not in kinds:
            raise unsupported_type(at, kind, f"blocks of type {' or '.join(map(repr, kinds))} are expected here")
        yield at, checked_part(kinds.get(kind or "", _Block), part, at)


class _MessageForm(AnswerForm):
    """The form of Anthropic's answers: a list of content blocks.

    Attributes:
        content: The blocks up to now.
    """

    keep_alive = event_text('{"type":"ping"}', "ping")

    def __init__(self, answer: ServedAnswer) -> None:
        super().__init__(answer)
        self._row = answer.rows[0]
        self.content: list[dict[str, Any]] = []
        self._is_open = False  # whether the last block may grow
        self._input = ""  # of the last block, if it is a call

    def whole(self) -> Mapping[str, Any]:
        """Return the message."""
        for _ in (*self.add(0, self._row.parts), *self.end_row(0)):
            pass
        return {
            **self._message(self.content),
            **self._end,
            "usage": self._usage,
            "prompt_cache": self.answer.cache_data(self._row),
        }

    def begin(self) -> Iterator[str]:
        """Yield the message without its content. How much of the prompt was cached is not known yet."""
        usage = {"input_tokens": self._row.num_prompt_tokens, "output_tokens": 0}
        message = {**self._message([]), "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield _event("message_start", message=message)

    def add(self, index: int, piece: SplitText) -> Iterator[str]:
        """Yield deltas of blocks, and their starts."""
        if piece.reasoning:
            yield from self._grow("thinking", piece.reasoning)
        if piece.answer:
            yield from self._grow("text", piece.answer)
        for number, name, arguments in piece.calls:
            if name:
                yield from self._close()
                block = {"type": "tool_use", "id": f"toolu_{self._row.call_key(number)}", "name": name, "input": {}}
                yield self._start(block)
            else:
                self._input += arguments
                yield self._delta({"type": "input_json_delta", "partial_json": arguments})

    def end_row(self, index: int) -> Iterator[str]:
        """Yield the end of the last block."""
        yield from self._close()

    def end(self) -> Iterator[str]:
        """Yield the stop reason with the usage, and the end."""
        cache = self.answer.cache_data(self._row)
        yield _event("message_delta", delta=self._end, usage=self._usage, prompt_cache=cache)
        yield _event("message_stop")

    def fail(self, error: ApiError) -> str:
        """Return the error object as an event."""
        return event_text(json_text(error.anthropic_body), "error")

    def _message(self, content: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        head = {"id": f"msg_{self.answer.key}", "type": "message", "role": "assistant", "model": self.answer.model}
        return {**head, "content": content}

    def _grow(self, kind: str, text: str) -> Iterator[str]:
        if not self._is_open or self.content[-1]["type"] != kind:
            yield from self._close()
            yield self._start({"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})})
        self.content[-1][kind] += text
        yield self._delta({"type": f"{kind}_delta", kind: text})

    def _start(self, block: dict[str, Any]) -> str:
        self.content.append(block)
        self._is_open = True
        return _event("content_block_start", index=len(self.content) - 1, content_block=block)

    def _delta(self, delta: Mapping[str, Any]) -> str:
        return _event("content_block_delta", index=len(self.content) - 1, delta=delta)

    def _close(self) -> Iterator[str]:
        if self._is_open:
            self._is_open = False
            if self._input:
                with suppress(ValueError, RecursionError):  # it may be cut
                    self.content[-1]["input"] = json.loads(self._input)
                self._input = ""
            yield _event("content_block_stop", index=len(self.content) - 1)

    @property
    def _end(self) -> dict[str, Any]:
        """Why the answer ended."""
        stop = None
        if (finish := self._row.finish) == "tool_calls":
            reason = "tool_use"
        elif (stop := self._row.text.stop_string) is not None:
            reason = "stop_sequence"
        else:
            reason = "max_tokens" if finish == "length" else "end_turn"
        return {"stop_reason": reason, "stop_sequence": stop}

    @property
    def _usage(self) -> dict[str, int]:
        usage = self.answer.usage
        return {
            "input_tokens": usage.num_prompt_tokens - usage.num_cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.num_cached_tokens,
            "output_tokens": usage.num_generated_tokens,
        }


def _event(name: str, **fields: Any) -> str:
    return event_text(json_text({"type": name, **fields}), name)
