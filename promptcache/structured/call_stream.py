"""Calls of tools in an answer that is being generated: the name first, then the arguments piece by piece.

A call is certain once its name and the beginning of its arguments are known. So its arguments are what the model
writes, and end where the answer ends. Calls in another form than that of chat templates come whole, at the end.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum, auto
from typing import NamedTuple

from promptcache.structured.tools import CallSplit, CallStyle, ToolCall

_CALL = r'\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
_NEXT = re.compile(_CALL)
_BARE = re.compile(rf"\s*(?P<list>\[?){_CALL}")


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
        self._is_list = False
        self._depth = 0  # 1 is inside of the object with name and arguments
        self._in_text = self._is_escaped = self._in_arguments = False
        self._tagged = re.compile(rf"\s*{re.escape(style.tag)}{_BARE.pattern}")

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
                if found is None and not self._said and not self.calls:
                    found = _BARE.match(self._held)
                return self._begin(found)
            case _StreamPlace.CALL:
                return self._take_json()
            case _StreamPlace.LIST:
                rest = self._held.lstrip()
                if rest:
                    self._held = rest[1:] if rest[0] in ",]" else rest
                    self._place = _StreamPlace.NEXT if rest[0] == "," else _StreamPlace.END
                return bool(rest)
            case _StreamPlace.NEXT:
                return self._begin(_NEXT.match(self._held))
            case _StreamPlace.END:
                tag, rest = self._style.end_tag, self._held.lstrip()
                if tag.startswith(rest) and rest != tag:
                    return False
                self._held = rest.removeprefix(tag) if tag else self._held
                self._place, self._is_list = _StreamPlace.TEXT, False
                return True

    def _begin(self, found: re.Match[str] | None) -> bool:
        """Begin a call of a tool, if a text is the beginning of one."""
        if found is None or found["name"] not in self._names:
            return False
        self._is_list = self._is_list or bool(found.groupdict().get("list"))
        self._held = self._held[found.end() :]
        self._place, self._depth, self._in_arguments = _StreamPlace.CALL, 1, True
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
                self._in_arguments = self._depth > 1
            if not self._depth:
                break
        if stop:
            self._written.append(self._held[:stop])
            self._pieces.append(CallPiece(len(self.calls) - 1, "", self._held[:stop]))
        self._held = self._held[start:]
        if self._depth:
            return False
        self._end_call()
        self._place = _StreamPlace.LIST if self._is_list else _StreamPlace.END
        return True

    def _end_call(self) -> None:
        self.calls = (*self.calls[:-1], ToolCall(self.calls[-1].name, "".join(self._written)))
        self._written = []
