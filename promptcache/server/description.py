"""A schema as data for clients: its modules with parameters, its unions, and their documentation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from promptcache.language import (
    CheckedItem,
    CheckedModule,
    CheckedSchema,
    CheckedTurn,
    CheckedUnion,
    Doc,
    Parameter,
    Whitespace,
    finish,
    walk,
)


def describe(checked: CheckedSchema) -> dict[str, Any]:
    """Return the modules and unions of a schema. The module "" has the parameters outside of modules."""
    docs = dict(_docs(checked))
    modules = [
        {
            "path": path,
            "required": path != "" and checked.modules[path].required,
            "doc": docs.get(path),
            "parameters": [_parameter(each) for each in checked.parameters[path].values()],
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
        for union in _unions(checked.children)
    ]
    return {"modules": modules, "unions": unions}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "length": parameter.length,
        "type": parameter.type,
        "choices": list(parameter.choices),
        "required": parameter.required,
        "default": parameter.default,
    }


def _unions(items: Iterable[CheckedItem]) -> Iterator[CheckedUnion]:
    for item in items:
        match item:
            case CheckedUnion():
                yield item
                yield from _unions(item.members)
            case CheckedModule() | CheckedTurn():
                yield from _unions(item.children)


def _docs(checked: CheckedSchema) -> Iterator[tuple[str, str]]:
    """Yield the first `doc` of each module."""
    seen = set()
    for parent, item in walk(checked.source.children):
        if isinstance(item, Doc) and parent not in seen:
            seen.add(parent)
            yield parent, "".join(text or "" for text in finish([item.text], Whitespace.DEDENT))
