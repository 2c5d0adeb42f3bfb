"""A schema as data for clients: its modules with parameters, its unions, their documentation, and tools in modules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from promptcache.diagnostics import InvalidValue
from promptcache.language import (
    CheckedCollection,
    CheckedItem,
    CheckedModule,
    CheckedSchema,
    CheckedTurn,
    CheckedUnion,
    FinalText,
    Parameter,
    Selection,
    module_docs,
    walk_checked,
)
from promptcache.structured import Tool, read_tools

_DECODER = json.JSONDecoder()
_DEFINITION = re.compile(r'\{\s*"type"\s*:\s*"function"')


def describe(checked: CheckedSchema) -> dict[str, Any]:
    """Return the modules and unions of a schema. The module "" has the parameters outside of modules.

    Members of collections are no part of it, because there can be 100,000.
    """
    docs = dict(module_docs(checked))
    modules = [
        {
            "path": path,
            "required": path != "" and checked.modules[path].required,
            "doc": docs.get(path),
            "parameters": [_parameter(each) for each in checked.parameters[path].values()],
            "collection": None if path == "" else _limits(checked.modules[path].collection),
        }
        for path in ("", *checked.modules)
    ]
    unions = [
        {
            "name": union.name,
            "required": union.required,
            "default": union.default,
            "members": [member.path for member in union.members],
        }
        for union in walk_checked(checked.children)
        if isinstance(union, CheckedUnion)
    ]
    return {"modules": modules, "unions": unions}


def tool_definitions(selection: Selection) -> list[Any]:
    """Return the tools whose definitions in the form of OpenAI are in the cached text of a prompt, as JSON."""
    present = frozenset(selection.modules)
    found = {each.name: each for text in _texts(selection.schema.children, present) for each in _tools_in(text)}
    return [each.definition for each in found.values()]


def _texts(items: Iterable[CheckedItem], present: frozenset[str]) -> Iterator[str]:
    for item in items:
        if isinstance(item, FinalText):
            yield item.text
        elif isinstance(item, CheckedUnion):
            yield from _texts(item.members, present)
        elif isinstance(item, CheckedTurn) or (isinstance(item, CheckedModule) and item.path in present):
            yield from _texts(item.children, present)


def _tools_in(text: str) -> Iterator[Tool]:
    """Yield the tools in a text, up to JSON that is not complete."""
    at = 0
    with suppress(ValueError, RecursionError):
        while (begin := _DEFINITION.search(text, at)) is not None:
            value, at = _DECODER.raw_decode(text, begin.start())
            with suppress(InvalidValue):
                yield from read_tools([value])


def _limits(collection: CheckedCollection | None) -> dict[str, Any] | None:
    return None if collection is None else {"min": collection.minimum, "max": collection.maximum}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "length": parameter.length,
        "type": parameter.type,
        "choices": list(parameter.choices),
        "required": parameter.required,
        "default": parameter.default,
    }
