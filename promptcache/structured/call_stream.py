"""Calls of tools in an answer that is being generated: the name first, then the arguments piece by piece.

A call is certain once its name and the beginning of its arguments are known. So its arguments are what the model
writes, apart from values that JSON does not have, and end where the answer ends. Arguments that are written one by one,
and calls in another form than that of the chat template, come whole, at the end.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum, auto
from typing import NamedTuple

from promptcache.diagnostics import InvalidOutput, shown
from promptcache.structured.arguments import ValidJSON, read_json
from promptcache.structured.call_style import CallStyle, joint_pattern, lenient
from promptcache.structured.calls import CallSplit
from promptcache.structured.tools import ToolCall

_OTHER_KEYS = r'\s*(?:"\w+"\s*:\s*"[^"\\]*"\s*,\s*)*'
"""Matches what may be in front of the name in JSON of a call, such as an id."""

_MAX_NAME = 128
"""Characters of a name and of what is behind it, for which the end of a call waits."""


class CallPiece(NamedTuple):
    """A piece of a call. `name` is that of the tool in the first piece of each call, and empty in the others."""

    number: int
    name: str
    arguments: str


class _StreamPlace(Enum):
    TEXT = auto()
    CALL = auto()
    LIST = auto()  # behind a call in a list
    NEXT = auto()  # behind a comma of the list
    END = auto()  # where the tag may be that ends a call


class CallStream(CallSplit):
    """Splits the text of an answer from its calls as `CallSplit` does, and has the pieces of its calls.

    Attributes:
        is_cut: Whether the answer ends inside of a call.
    """

    def __init__(self, names: Collection[str], style: CallStyle) -> None:
        super().__init__(names, style)
        self.is_cut = False
        self._place = _StreamPlace.TEXT
        self._pieces = list[CallPiece]()
        self._written = list[str]()  # of the arguments of the last call
        self._is_list = self._is_styled = False
        self._depth = 0  # 1 is inside of the object with name and arguments
        self._in_text = self._is_escaped = self._in_arguments = False
        self._valid = ValidJSON()
        keys = "|".join(map(re.escape, style.arguments_keys))
        call = rf'\s*\{{{_OTHER_KEYS}\s*"{style.name_key}"\s*:\s*"(?P<name>[^"\\]*)"\s*,\s*"(?:{keys})"\s*:\s*(?=\{{)'
        self._next, self._bare = re.compile(call), re.compile(rf"\s*(?P<list>\[?){call}")
        self._tagged = re.compile(rf"\s*{re.escape(style.tag)}{self._bare.pattern}")
        if not style.is_json:
            behind = rf"{style.behind_name.pattern}(?=\{{)"
            self._tagged = re.compile(rf"{style.begin.pattern}{behind}" if style.elements is None else "(?!)")
            self._after = re.compile(joint_pattern(style.joint) + behind)
            self._tail = re.compile(lenient(style.tail))

    def take(self) -> tuple[CallPiece, ...]:
        """Return the pieces since the last time."""
        pieces, self._pieces = tuple(self._pieces), []
        return pieces

    def add(self, piece: str) -> str:
        """Add a piece of the text, and return the text that is certain now."""
        text = ""
        self._held += piece
        while self._held:
            if self._place is _StreamPlace.TEXT:
                text += super().add("")
            if not self._go_on():
                break
        return text

    def rest(self) -> str:
        """Return the text that is held back, if no more follows, without the calls in it."""
        if self._place is _StreamPlace.CALL:
            self.is_cut = True
            self._end_call()
            return ""
        if self._place in (_StreamPlace.LIST, _StreamPlace.END):
            return ""  # a limit may have cut the tag
        known = self.calls
        text = super().rest()
        for number, call in enumerate(self.calls, len(known)):
            self._pieces += (CallPiece(number, call.name, ""), CallPiece(number, "", call.arguments))
        text = text.rstrip() if known else text
        self.calls = (*known, *self.calls)
        return text

    def _go_on(self) -> bool:
        """Take what is known at a place. Return whether the place is another one now."""
        match self._place:
            case _StreamPlace.TEXT:
                found = self._tagged.match(self._held)
                is_styled = found is not None and not self._style.is_json
                if found is None and not self._said and not self.calls:
                    found = self._bare.match(self._held)
                return self._begin(found, is_styled=is_styled)
            case _StreamPlace.CALL:
                return self._take_json()
            case _StreamPlace.LIST:
                rest = self._held.lstrip()
                if rest:
                    self._held = rest[1:] if rest[0] in ",]" else rest
                    self._place = _StreamPlace.NEXT if rest[0] == "," else _StreamPlace.END
                return bool(rest)
            case _StreamPlace.NEXT:
                return self._begin(self._next.match(self._held))
            case _StreamPlace.END if self._is_styled:
                return self._end_styled()
            case _StreamPlace.END:
                tag, rest = self._style.end_tag, self._held.lstrip()
                if tag.startswith(rest) and rest != tag:
                    return False
                self._held = rest.removeprefix(tag) if tag else self._held
                self._place, self._is_list = _StreamPlace.TEXT, False
                return True

    def _end_styled(self) -> bool:
        """Begin the next call behind the JSON of one, or leave out the tail of the calls."""
        found = self._after.match(self._held)
        if found is not None:
            return self._begin(found, is_styled=True)
        rest, joint, tail = ("".join(each.split()) for each in (self._held, self._style.joint or "", self._style.tail))
        if joint and (joint.startswith(rest) or (rest.startswith(joint) and len(rest) < len(joint) + _MAX_NAME)):
            return False
        if tail.startswith(rest) and rest != tail:
            return False
        found = self._tail.match(self._held)
        self._held = self._held[found.end() :] if found and tail else self._held
        self._place = _StreamPlace.TEXT
        return True

    def _begin(self, found: re.Match[str] | None, *, is_styled: bool = False) -> bool:
        """Begin a call of a tool, if a text is the beginning of one."""
        if found is None or found["name"] not in self._names:
            return False
        self._is_list = self._is_list or bool(found.groupdict().get("list"))
        self._held = self._held[found.end() :]
        self._is_styled = is_styled
        self._place, self._depth, self._in_arguments = _StreamPlace.CALL, int(not is_styled), True
        self._valid = ValidJSON()
        self._pieces.append(CallPiece(len(self.calls), found["name"], ""))
        self.calls = (*self.calls, ToolCall(found["name"], ""))
        return True

    def _take_json(self) -> bool:
        """Take JSON of a call, and return whether the call has ended."""
        stop = start = 0
        for start, character in enumerate(self._held, 1):
            if self._in_text:
                self._in_text = self._is_escaped or character != '"'
                self._is_escaped = character == "\\" and not self._is_escaped
            elif character == '"':
                self._in_text = True
            else:
                self._depth += (character in "{[") - (character in "}]")
            if self._in_arguments:
                stop = start
                self._in_arguments = self._depth > (not self._is_styled)
            if not self._depth:
                break
        if stop:
            self._add_arguments(self._valid.add(self._held[:stop]))
        self._held = self._held[start:]
        if self._depth:
            return False
        self._end_call()
        self._check(self.calls[-1])
        self._place = _StreamPlace.LIST if self._is_list else _StreamPlace.END
        return True

    def _add_arguments(self, text: str) -> None:
        if text:
            self._written.append(text)
            self._pieces.append(CallPiece(len(self.calls) - 1, "", text))

    def _check(self, call: ToolCall) -> None:
        """Refuse a call that was streamed, and whose arguments are no JSON."""
        try:
            read_json(call.arguments)
        except (ValueError, RecursionError) as error:
            raise InvalidOutput(
                f"the arguments of the call of {shown(call.name)} are not JSON: {error}; ask again, or let tool_choice "
                "name the tool, which gives them the form of its schema"
            ) from None

    def _end_call(self) -> None:
        self._add_arguments(self._valid.rest())
        self.calls = (*self.calls[:-1], ToolCall(self.calls[-1].name, "".join(self._written)))
        self._written = []
