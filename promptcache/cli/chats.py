"""Chats as JSON: a list of messages, as chat services take them.

Comes in: the text of a file. Goes out: messages of text. What a schema has no form for – tools, images – is refused
with the number of its message: leaving it out, or writing it as text of somebody's turn, would be another chat.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from promptcache.cli.exits import UsageMistake
from promptcache.diagnostics import did_you_mean
from promptcache.language.schema import Role

_ROLES = {**{str(role): role for role in Role}, "developer": Role.SYSTEM}
_RESULTS = {"tool", "function"}
_CALLS = ("tool_calls", "function_call")
_TOOLS = ("tools", "functions")
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a chat."""

    role: Role
    text: str


def read_chat(text: str, source: str) -> Iterator[Message]:
    """Yield the messages of a chat: a list of them, or an object that has one as `messages`.

    Raises:
        UsageMistake: it is no chat, or holds what a schema has no form for.
    """
    try:
        data = json.loads(text.removeprefix("\ufeff"))
    except ValueError as error:
        raise UsageMistake(f"{source} is not JSON: {error}") from None
    except RecursionError:
        raise UsageMistake(f"{source} is no chat: its values are nested too deeply") from None
    chat = data.get("messages") if isinstance(data, dict) else data
    if not isinstance(chat, list):
        raise UsageMistake(f"{source} is no chat: a list of messages, or an object with 'messages'")
    if isinstance(data, dict) and (declared := next((name for name in _TOOLS if data.get(name)), None)):
        mend = f"take '{declared}' out to convert the messages alone, or write them into the system message"
        raise UsageMistake(f"{source} declares {declared}, which the model sees and a schema has no form for: {mend}")
    if not chat:
        raise UsageMistake(f"{source} has no messages")
    for number, message in enumerate(chat, 1):
        yield _message(message, f"message {number} of {source}")


def not_in_xml(text: str) -> tuple[str, int] | None:
    """Return the first character that XML has no form for, as people call it, and where it stands; None without one."""
    found = _NOT_IN_XML.search(text)
    return None if found is None else (f"the character U+{ord(found[0]):04X}", found.start())


def _message(message: object, place: str) -> Message:
    if not isinstance(message, dict):
        raise UsageMistake(f"{place} is no object with 'role' and 'content'")
    role = message.get("role")
    if not isinstance(role, str):
        raise UsageMistake(f"{place} has no 'role'")
    if role in _RESULTS:
        raise UsageMistake(f"{place} is the result of a tool (role '{role}'), which a schema has no form for")
    if role not in _ROLES:
        mend = did_you_mean(role, _ROLES) or f"roles are {', '.join(_ROLES)}"
        raise UsageMistake(f"{place} has the role '{role}'; {mend}")
    if any(message.get(name) for name in _CALLS):
        raise UsageMistake(f"{place} calls a tool, which a schema has no form for")
    text = _text(message, place)
    if fault := not_in_xml(text):
        raise UsageMistake(f"{place} holds {fault[0]}, which no XML document can: remove it")
    return Message(role=_ROLES[role], text=text)


def _text(message: Mapping[str, object], place: str) -> str:
    """Return the text of a message, which is whole or in parts."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise UsageMistake(f"{place} has no text as its 'content'")
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            kind = f"of type '{part['type']}'" if isinstance(part, dict) and "type" in part else "without a type"
            raise UsageMistake(f"{place} holds a part {kind}; only text can be converted")
        texts.append(text)
    return "".join(texts)
