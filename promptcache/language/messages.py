"""Chat messages as turns: `{"role": "user", "content": "…"}`, as other libraries and servers write them.

The content of a message is text: markup in it is not parsed. A part of a message that a turn cannot express is refused
with its place: without it, the chat would be another one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from promptcache.diagnostics import TEXT, InvalidValue, Kind, Span, did_you_mean, shown
from promptcache.language.limits import MAX_DEPTH
from promptcache.language.syntax.nodes import Message, Role

ChatMessages: TypeAlias = Sequence[Mapping[str, Any]]
"""A chat: a list of messages, each with `role` and `content`."""


_CHAT = Kind('a list of messages, {"role": …, "content": …},', lambda value: isinstance(value, list | tuple))
_CALLS = Kind("a list of calls of tools", lambda value: isinstance(value, list | tuple))
_ROLES: Mapping[str, Role] = {**{str(role): role for role in Role}, "developer": Role.SYSTEM}
_TOOL = "tool"
_OF_TOOLS = (_TOOL, "function")
_RESULT_FIELDS = ("tool_call_id", "name")
_REASONING = ("reasoning_content", "reasoning")
_NO_TEXT = ("function_call", "audio", "refusal", "reasoning_details", "thinking", "thinking_blocks")
"""Fields of messages that chat templates render, and turns do not have."""


def read_messages(messages: ChatMessages, *, of_model: bool = False) -> tuple[Message, ...]:
    """Return the turns of chat messages.

    Args:
        of_model: Whether messages may have what a model writes and what answers it: reasoning, as text in
            `reasoning_content` or `reasoning`, and `tool_calls` of the assistant; and results with the role `tool`.

    Raises:
        InvalidValue: It is no such list, or a turn cannot express a message; names the place.
    """
    _CHAT.check("messages", messages, InvalidValue)
    if not messages:
        raise InvalidValue("messages is empty: a chat has at least one message")
    return tuple(_message(each, f"messages[{index}]", of_model) for index, each in enumerate(messages))


def _message(message: Any, place: str, of_model: bool) -> Message:
    if not isinstance(message, Mapping):
        raise InvalidValue(f'{place}={shown(message)} is not a message: {{"role": …, "content": …}} is expected')
    if of_model and message.get("role") == _TOOL:
        return _result(message, place)
    role = _role(message, place)
    for field in _NO_TEXT if of_model else (*_NO_TEXT, *_REASONING, "tool_calls"):
        if message.get(field):
            raise InvalidValue(f"{place}.{field} is not supported: a turn has only text")
    name = next((name for name in _REASONING if message.get(name)), _REASONING[0])
    reasoning = message.get(name) or ""
    TEXT.check(f"{place}.{name}", reasoning, InvalidValue)
    if reasoning and role is not Role.ASSISTANT:
        raise InvalidValue(f"{place}.{name} is not allowed: only messages of the assistant have reasoning")
    calls = message.get("tool_calls") or []
    if calls and role is not Role.ASSISTANT:
        raise InvalidValue(f"{place}.tool_calls is not allowed: only messages of the assistant have calls")
    if calls and message.get("content") is None:
        message = {**message, "content": ""}
    text, tool_fields = _content(message, f"{place}.content"), ""
    if calls:
        _CALLS.check(f"{place}.tool_calls", calls, InvalidValue)
        read = [_call(each, f"{place}.tool_calls[{index}]") for index, each in enumerate(calls)]
        tool_fields = _json({"tool_calls": read})
    return Message(role=role, text=text, span=Span(place, 0, 0, 0, 0), reasoning=reasoning, tool_fields=tool_fields)


def _result(message: Mapping[str, Any], place: str) -> Message:
    """Return the result of a tool. The user's side gives it; the template writes it with its own role."""
    fields = {name: message[name] for name in _RESULT_FIELDS if message.get(name) is not None}
    for name, value in fields.items():
        TEXT.check(f"{place}.{name}", value, InvalidValue)
    text = _content(message, f"{place}.content")
    tool_fields = _json({"role": _TOOL, **fields})
    return Message(role=Role.USER, text=text, span=Span(place, 0, 0, 0, 0), tool_fields=tool_fields)


def _call(call: Any, place: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        form = '{"type": "function", "function": {"name": …, "arguments": …}}'
        raise InvalidValue(f"{place}={shown(call)} is not a call of a tool: {form} is expected")
    TEXT.check(f"{place}.function.name", function["name"], InvalidValue)
    arguments = function.get("arguments") or {}
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        TEXT.check(f"{place}.function.arguments", _json(arguments), InvalidValue)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValue(f"{place}.function.arguments is not JSON: {error}") from None
    if not isinstance(arguments, Mapping):
        raise InvalidValue(
            f"{place}.function.arguments={shown(arguments)} is not allowed: JSON of an object is expected"
        )
    if _is_deeper(arguments, MAX_DEPTH):
        raise InvalidValue(f"{place}.function.arguments has more than {MAX_DEPTH} lists and objects inside each other")
    made = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    if call.get("id") is None:
        return made
    TEXT.check(f"{place}.id", call["id"], InvalidValue)
    return {"id": call["id"], **made}


def _is_deeper(value: Any, most: int) -> bool:
    """Whether a value in JSON has more lists and objects inside each other than `most`."""
    level = [value]
    for _ in range(most + 1):
        inner = (each.values() if isinstance(each, Mapping) else each for each in level)
        level = [each for values in inner for each in values if isinstance(each, Mapping | list | tuple)]
        if not level:
            return False
    return True


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _role(message: Mapping[str, Any], place: str) -> Role:
    if "role" not in message:
        raise InvalidValue(f"{place} has no 'role'")
    role = message["role"]
    if isinstance(role, str) and role in _OF_TOOLS:
        raise InvalidValue(f"{place}.role={shown(role)} is not supported: a schema has no messages of tools")
    if not isinstance(role, str) or role not in _ROLES:
        near = did_you_mean(role, _ROLES) if isinstance(role, str) else None
        fix = near or f"roles are {', '.join(_ROLES)}"
        raise InvalidValue(f"{place}.role={shown(role)} is not allowed: {fix}")
    return _ROLES[role]


def _content(message: Mapping[str, Any], place: str) -> str:
    content = message.get("content")
    if content is None:
        raise InvalidValue(f"{place} is missing: a message has text, or a list of text parts")
    if isinstance(content, list | tuple):
        if not content:
            raise InvalidValue(f"{place} is empty: a message has text, or a list of at least one text part")
        for index, part in enumerate(content):
            here = f"{place}[{index}]"
            if not isinstance(part, Mapping) or "type" not in part:
                raise InvalidValue(f'{here}={shown(part)} is not a part: {{"type": "text", "text": …}} is expected')
            if part["type"] != "text":
                kind = shown(part["type"])
                raise InvalidValue(f"{here}.type={kind} is not supported: only parts of type 'text' are")
            TEXT.check(f"{here}.text", part.get("text"), InvalidValue)
        return "".join(part["text"] for part in content)
    TEXT.check(place, content, InvalidValue)
    return str(content)
