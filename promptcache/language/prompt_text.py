"""The text of a prompt, and the tools whose definitions are in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from promptcache.diagnostics import InvalidValue
from promptcache.language.checked import (
    CheckedItem,
    CheckedModule,
    CheckedParameter,
    CheckedTurn,
    CheckedUnion,
    FinalText,
    Selection,
)

if TYPE_CHECKING:
    from promptcache.structured import Tool

_Piece: TypeAlias = FinalText | CheckedParameter | CheckedTurn

_DECODER = json.JSONDecoder()
_DEFINITION = re.compile(r'\{\s*"type"\s*:\s*"function"')


def text_of(selection: Selection) -> str:
    """Return the text of a prompt: its modules with their arguments, then its own text; each turn starts a new line."""
    schema, filled = selection.schema, {(slot.module, slot.parameter): slot.text for slot in selection.arguments}
    goes_on = schema.has_open_turn or not schema.has_turns
    found = []
    for owner, piece in _pieces(selection):
        match piece:
            case FinalText(text=text):
                found.append(text)
            case CheckedTurn():
                found.append("\n")
            case parameter:
                found.append(parameter.lead + filled.get((owner, parameter.name), parameter.default or ""))
    for message in selection.messages:
        found += [schema.open_separator if message.role is None and goes_on else "\n", message.text]
    return "".join(found)


def tool_definitions(selection: Selection) -> list[Any]:
    """Return the tools whose definitions in the form of OpenAI are in the cached text of a prompt, as JSON."""
    texts = (piece.text for _, piece in _pieces(selection) if isinstance(piece, FinalText))
    found = {each.name: each for text in texts for each in _tools_in(text)}
    return [each.definition for each in found.values()]


def _pieces(selection: Selection) -> Iterator[tuple[str, _Piece]]:
    """Yield the texts and slots of a prompt, each with the module around it, and turns at their start and, unless it
    is open, their end."""
    present = frozenset(selection.modules)

    def walk(items: Iterable[CheckedItem], owner: str) -> Iterator[tuple[str, _Piece]]:
        for item in items:
            match item:
                case CheckedModule():
                    if item.path in present:
                        yield from walk(selection.children(item), item.path)
                case CheckedUnion():
                    yield from walk(item.members, owner)
                case CheckedTurn():
                    yield owner, item
                    yield from walk(item.children, owner)
                    if not item.open:
                        yield owner, item
                case piece:
                    yield owner, piece

    return walk(selection.schema.children, "")


def _tools_in(text: str) -> Iterator[Tool]:
    """Yield the tools in a text, up to JSON that is not complete."""
    from promptcache.structured import read_tools  # brings the library of grammars, which few commands need

    at = 0
    with suppress(ValueError, RecursionError):
        while (begin := _DEFINITION.search(text, at)) is not None:
            value, at = _DECODER.raw_decode(text, begin.start())
            with suppress(InvalidValue):
                yield from read_tools([value])
