"""Calls of tools in the text of an answer.

Many models write a call as JSON with the name and the arguments, with tags around it. Others write the name and the
arguments apart. A `CallStyle` has the text that the template of a model writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from contextlib import suppress
from os.path import commonprefix
from typing import Any, TypeAlias

from promptcache.structured.arguments import keyword, literal_value, read_json, read_json_at, typed_value
from promptcache.structured.call_style import (
    ARGUMENTS_KEY,
    NAME_KEY,
    CallStyle,
    Elements,
    lenient,
    name_behind,
)
from promptcache.structured.tools import ToolCall

_FENCE = re.compile(r"```[a-z_]*\n(.*?)\n?```", re.DOTALL)
_OPEN_FENCE = re.compile(r"```[a-z_]*\n\s*")
_KEY = r"([^\n<>=(){}\[\],:]+?)"  # name of an argument
_SPACE = re.compile(r"\s+")

_Arguments: TypeAlias = tuple[Any, int, str | None, str]
"""The arguments of a call, where they end, and the texts that may follow: a joint and a name, or a tail."""


def parse_calls(text: str, names: Collection[str], style: CallStyle) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the text of an answer without its calls, and the calls.

    These are calls in the style of the model, a whole answer in JSON that is a call or a list of calls, and code blocks
    with such JSON. What names no tool of `names` stays text.
    """
    found, rest, at = list[ToolCall](), list[str](), 0
    signs = style.signs(names)
    while places := [(place, -len(sign), sign) for sign in signs if (place := text.find(sign, at)) >= 0]:
        start, _, sign = min(places)  # the first one, and the longest of those
        calls, stop = ((), start) if style.is_json else _styled_calls(text, start, names, style)
        if not calls:
            calls, stop = _json_calls(text, start + len(style.tag), names, style)
        rest.append(text[at:start] if calls else text[at : start + len(sign)])
        found += calls
        at = stop if calls else start + len(sign)
    rest.append(text[at:])
    content = "".join(rest)
    if not found and (calls := _calls_of(content.strip(), names, style)):
        return "", calls
    if not found:
        for block in _FENCE.finditer(content):
            found += _calls_of(block[1].strip(), names, style)
        if found:
            content = _FENCE.sub(lambda block: "" if _calls_of(block[1].strip(), names, style) else block[0], content)
    return content.rstrip() if found else text, tuple(found)


def _json_calls(text: str, start: int, names: Collection[str], style: CallStyle) -> tuple[tuple[ToolCall, ...], int]:
    try:
        value, stop = read_json_at(text, start)
    except (ValueError, RecursionError):
        return (), start
    calls = _calls(value, names, style)
    end = style.end_tag
    rest = text[stop:].lstrip()
    if rest.startswith(end) or end.startswith(rest):  # a limit may have cut the tag
        stop = len(text) - len(rest) + min(len(end), len(rest))
    return calls, stop


def _styled_calls(text: str, start: int, names: Collection[str], style: CallStyle) -> tuple[tuple[ToolCall, ...], int]:
    """Return the calls whose names and arguments are apart."""
    calls, stop = list[ToolCall](), start
    found = name_behind(style.head).match(text, start)
    while found is not None and found["name"] in names:
        name, at = found["name"], found.end()
        if style.elements is None:
            read = _json_arguments(text, at, style)
        else:
            read = _element_arguments(text, at, name, style, style.elements)
        if read is None:
            break  # a limit may have cut them
        values, at, joint, tail = read
        calls.append(ToolCall(name, json.dumps(values, ensure_ascii=False)))
        stop = _behind(text, at, tail)
        found = None if joint is None else name_behind(joint).match(text, at)
    return tuple(calls), stop


def _json_arguments(text: str, start: int, style: CallStyle) -> _Arguments | None:
    """Return the arguments behind a name; None if there are none."""
    behind = re.compile(lenient(style.middle)).match(text, start)
    if behind is None or not text.startswith("{", behind.end()):
        return None
    try:
        return *read_json_at(text, behind.end()), style.joint, style.tail
    except (ValueError, RecursionError):
        return None


def _element_arguments(text: str, start: int, name: str, style: CallStyle, elements: Elements) -> _Arguments | None:
    """Return the same for arguments that are written one by one."""
    if _ends(text, start, elements.empty_joint, elements.empty_tail, shared=style.middle):
        return {}, start, elements.empty_joint, elements.empty_tail
    schema, values = style.parameters(name), dict[str, Any]()
    properties = keyword(schema, "properties", dict)
    key, separator = re.compile(rf"{_KEY}{_equals(elements)}"), re.compile(lenient(elements.between))
    shared = commonprefix([elements.between, style.tail])
    behind = re.compile(lenient(style.middle)).match(text, start)
    while behind is not None and (named := key.match(text, behind.end())) is not None:
        found = _value(text, named.end(), style, elements)
        if found is None:
            return None
        argument, (written, stop, is_text) = named[1].strip(), found
        if is_text:
            values[argument] = written
        elif elements.is_code:
            values[argument] = literal_value(written, is_code=True)
        else:
            values[argument] = typed_value(written, properties.get(argument, {}), schema)
        behind = separator.match(text, stop)
        if behind is None and _ends(text, stop, style.joint, style.tail, shared):
            return values, stop, style.joint, style.tail
    return None


def _equals(elements: Elements) -> str:
    """Return a pattern of what is between a name and a value. Of the white space at its end, some may be missing."""
    exact = elements.equals.rstrip()
    space = "".join(f"{re.escape(each)}?" for each in elements.equals[len(exact) :])
    return lenient(exact).removesuffix(r"\s*") + space


def _value(text: str, start: int, style: CallStyle, elements: Elements) -> tuple[str, int, bool] | None:
    """Return the text of a value, where it ends, and whether it had quotes of its own; None if it does not end."""
    opening, closing = elements.quotes
    if opening and not elements.is_code and text.startswith(opening, start):
        start += len(opening)
        stop = text.find(closing, start)
        return None if stop < 0 else (text[start:stop], stop + len(closing), True)
    ends = (each for each in (elements.between, style.tail, style.joint) if each)
    behind = re.compile("|".join(map(_exact_start, ends)))
    if elements.is_code:
        with suppress(ValueError, RecursionError):
            _, stop = read_json_at(text, start)
            if behind.match(text, stop):
                return text[start:stop], stop, False
    found = behind.search(text, start)
    return None if found is None else (text[start : found.start()], found.start(), False)


def _exact_start(text: str) -> str:
    """Return a pattern of a text whose white space at the start may be missing, but is not more."""
    start = text[: len(text) - len(text.lstrip())]
    first = text.split()[0] if text.strip() else ""
    return "".join(f"{re.escape(each)}?" for each in start) + re.escape(first)


def _ends(text: str, at: int, joint: str | None, tail: str, shared: str = "") -> bool:
    """Whether calls end or go on at a place.

    A limit may have cut the tail; what it left is more than `shared`, which is also in the middle of arguments.
    """
    rest, whole, known, more = (_SPACE.sub("", each or "") for each in (text[at:], tail, shared, joint))
    return rest.startswith((whole, more or whole)) or (len(rest) > len(known) and whole.startswith(rest))


def _behind(text: str, at: int, tail: str) -> int:
    """Return where a tail ends that begins at a place, whole or cut."""
    found = re.compile(lenient(tail)).match(text, at)
    if found is not None:
        return len(text[: found.end()].rstrip()) if tail.strip() else at
    rest, whole = (_SPACE.sub("", each) for each in (text[at:], tail))
    return len(text) if whole.startswith(rest) else at


def _calls_of(text: str, names: Collection[str], style: CallStyle) -> tuple[ToolCall, ...]:
    """Return the calls of a text that is JSON as a whole; none if it is something else."""
    try:
        return _calls(read_json(text), names, style)
    except (ValueError, RecursionError):
        return ()


def _calls(value: Any, names: Collection[str], style: CallStyle) -> tuple[ToolCall, ...]:
    items = value if isinstance(value, list) else [value]
    calls = [_call(each, names, style) for each in items]
    return tuple(each for each in calls if each is not None) if calls and all(calls) else ()


def _call(value: Any, names: Collection[str], style: CallStyle) -> ToolCall | None:
    if not isinstance(value, dict):
        return None
    value = value["function"] if isinstance(value.get("function"), dict) else value
    name_key, arguments_key = NAME_KEY.search(style.head), ARGUMENTS_KEY.search(style.middle)
    name = value.get("name", value.get(name_key[1]) if name_key else None)
    keys = (*(arguments_key.groups() if arguments_key else ()), "arguments", "parameters")
    arguments: Any = next((value[key] for key in keys if key in value), {})
    if isinstance(arguments, str):
        try:
            arguments = read_json(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(name, str) or name not in names or not isinstance(arguments, dict):
        return None
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


class CallSplit:
    """Splits the text of an answer from its calls of the tools `names`, piece by piece.

    Text is held back from where a call may begin. The pieces and the rest are the text that `parse_calls` returns.

    Attributes:
        calls: The calls, once `rest` was called.
    """

    def __init__(self, names: Collection[str], style: CallStyle) -> None:
        self.calls: tuple[ToolCall, ...] = ()
        self._names, self._style = names, style
        self._said = self._held = ""
        self._signs = (*style.signs(names), "```")

    def add(self, piece: str) -> str:
        """Add a piece of the text, and return the text that is certain now."""
        self._held += piece
        if not self._said and self._held.lstrip()[:1] in ("", "{", "["):
            return ""
        places = (at for at in range(len(self._held)) if self._may_begin(at))
        stop = next(places, len(self._held))
        stop = len(self._held[:stop].rstrip())  # white space before a call is left out
        taken, self._held = self._held[:stop], self._held[stop:]
        self._said += taken
        return taken

    def rest(self) -> str:
        """Return the text that is held back, if no more follows, without the calls in it."""
        content, self.calls = parse_calls(self._said + self._held, self._names, self._style)
        rest = content[len(self._said) :] if content.startswith(self._said) else self._held
        self._held = ""
        return rest

    def _may_begin(self, at: int) -> bool:
        """Whether a call may begin at a place of the text that is held back."""
        for sign in self._signs:
            if self._held.startswith(sign, at) or sign.startswith(self._held[at:]):
                break
        else:
            return False
        found = _OPEN_FENCE.match(self._held, at)
        if found is None or found.end() == len(self._held):
            return True  # a sign, or the start of a code block
        block = _FENCE.match(self._held, at)
        return self._held[found.end()] in "{[" and (
            block is None or bool(_calls_of(block[1].strip(), self._names, self._style))
        )
