"""Chat messages as turns: `{"role": "user", "content": "…"}`, as other libraries and servers write them.

The content of a message is text: markup in it is not parsed. A part of a message that a turn cannot express is refused
with its place: without it, the chat would be another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from promptcache.diagnostics import TEXT, InvalidValue, Kind, Span, did_you_mean, shown
from promptcache.language.syntax.nodes import Role

ChatMessages: TypeAlias = Sequence[Mapping[str, Any]]
"""A chat: a list of messages, each with `role` and `content`."""


class ChatMessage(NamedTuple):
    """A message that was read: role, text, its place in the list, and the reasoning of an answer."""

    role: Role
    text: str
    span: Span
    reasoning: str = ""


_CHAT = Kind('a list of messages, {"role": …, "content": …},', lambda value: isinstance(value, list | tuple))
_ROLES: Mapping[str, Role] = {**{str(role): role for role in Role}, "developer": Role.SYSTEM}
_RESULTS = ("tool", "function")
_REASONING = ("reasoning_content", "reasoning")
_NO_TEXT = ("tool_calls", "function_call", "audio", "refusal", "reasoning_details", "thinking", "thinking_blocks")
"""Fields of messages that chat templates render, and turns do not have."""


def read_messages(
    messages: ChatMessages, name: str = "messages", *, with_reasoning: bool = False
) -> tuple[ChatMessage, ...]:
    """Return the roles and texts of chat messages.

    Args:
        messages: The role of each is `system` (or `developer`), `user` or `assistant`. Its content is a text or a list
            of parts, `{"type": "text", "text": …}`.
        name: Name of the list in errors.
        with_reasoning: Whether a message of the assistant may have its reasoning, as text in `reasoning_content` or
            `reasoning`.

    Raises:
        InvalidValue: It is no such list, or a turn cannot express a message; names the place.
    """
    _CHAT.check(name, messages, InvalidValue)
    if not messages:
        raise InvalidValue(f"{name} is empty: a chat has at least one message")
    return tuple(_message(each, f"{name}[{index}]", with_reasoning) for index, each in enumerate(messages))


def _message(message: Any, place: str, with_reasoning: bool) -> ChatMessage:
    if not isinstance(message, Mapping):
        raise InvalidValue(f'{place}={shown(message)} is not a message: {{"role": …, "content": …}} is expected')
    role = _role(message, place)
    for field in _NO_TEXT if with_reasoning else (*_NO_TEXT, *_REASONING):
        if message.get(field):
            raise InvalidValue(f"{place}.{field} is not supported: a turn has only text")
    name = next((name for name in _REASONING if message.get(name)), _REASONING[0])
    reasoning = message.get(name) or ""
    TEXT.check(f"{place}.{name}", reasoning, InvalidValue)
    if reasoning and role is not Role.ASSISTANT:
        raise InvalidValue(f"{place}.{name} is not allowed: only messages of the assistant have reasoning")
    return ChatMessage(role, _content(message, f"{place}.content"), Span(place, 0, 0, 0, 0), reasoning)


def _role(message: Mapping[str, Any], place: str) -> Role:
    if "role" not in message:
        raise InvalidValue(f"{place} has no 'role'")
    role = message["role"]
    if isinstance(role, str) and role in _RESULTS:
        raise InvalidValue(f"{place}.role={shown(role)} is not supported: results of tools have no turn")
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
        return "".join(_part(part, f"{place}[{index}]") for index, part in enumerate(content))
    TEXT.check(place, content, InvalidValue)
    return str(content)


def _part(part: Any, place: str) -> str:
    if not isinstance(part, Mapping) or "type" not in part:
        raise InvalidValue(f'{place}={shown(part)} is not a part: {{"type": "text", "text": …}} is expected')
    if part["type"] != "text":
        raise InvalidValue(f"{place}.type={shown(part['type'])} is not supported: only parts of type 'text' are")
    TEXT.check(f"{place}.text", part.get("text"), InvalidValue)
    return str(part["text"])
