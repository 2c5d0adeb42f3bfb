"""Tools whose definitions are in the text of a prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from promptcache.diagnostics import InvalidValue
from promptcache.language.checked import (
    CheckedItem,
    CheckedModule,
    CheckedTurn,
    CheckedUnion,
    FinalText,
    Selection,
)

if TYPE_CHECKING:
    from promptcache.structured import Tool

_DECODER = json.JSONDecoder()
_DEFINITION = re.compile(r'\{\s*"type"\s*:\s*"function"')


def tool_definitions(selection: Selection) -> list[Any]:
    """Return the tools whose definitions in the form of OpenAI are in the cached text of a prompt, as JSON."""
    present = frozenset(selection.modules)
    texts = _texts(selection, selection.schema.children, present)
    found = {each.name: each for text in texts for each in _tools_in(text)}
    return [each.definition for each in found.values()]


def _texts(selection: Selection, items: Iterable[CheckedItem], present: frozenset[str]) -> Iterator[str]:
    for item in items:
        if isinstance(item, FinalText):
            yield item.text
        elif isinstance(item, CheckedUnion):
            yield from _texts(selection, item.members, present)
        elif isinstance(item, CheckedTurn):
            yield from _texts(selection, item.children, present)
        elif isinstance(item, CheckedModule) and item.path in present:
            yield from _texts(selection, selection.children(item), present)


def _tools_in(text: str) -> Iterator[Tool]:
    """Yield the tools in a text, up to JSON that is not complete."""
    from promptcache.structured import read_tools  # brings the library of grammars, which few commands need

    at = 0
    with suppress(ValueError, RecursionError):
        while (begin := _DEFINITION.search(text, at)) is not None:
            value, at = _DECODER.raw_decode(text, begin.start())
            with suppress(InvalidValue):
                yield from read_tools([value])
