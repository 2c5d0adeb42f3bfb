"""Schemas and prompts without their places: what has to be the same after printing and reading.

Comes in: checked schemas and selections. Goes out: plain values that can be compared.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from promptcache.diagnostics import Span
from promptcache.language import CheckedSchema, Selection, check_schema, parse_schema, print_schema

_PLACES = frozenset({"span", "places", "source"})


def printed_again(schema: CheckedSchema) -> tuple[str, CheckedSchema]:
    """Return a schema's declaration as printed, and what that reads as, `src` files from where the schema lies."""
    printed = print_schema(schema.source)
    file = Path(schema.source.span.source)
    return printed, check_schema(parse_schema(printed, folder=file.parent if file.is_file() else None))


def shape(schema: CheckedSchema) -> tuple[object, ...]:
    """Return everything that a checked schema says, but for where it says it."""
    return (
        schema.name,
        schema.version,
        without_places(schema.children),
        {owner: without_places(tuple(found.values())) for owner, found in schema.parameters.items()},
        dict(schema.guaranteed),
        without_places(schema.scaffolds),
        schema.open_separator,
        without_places(schema.rules.rules),
    )


def said(selection: Selection) -> tuple[object, ...]:
    """Return everything that a prompt says, but for where it says it."""
    return (selection.modules, without_places(selection.arguments), without_places(selection.messages))


def without_places(value: Any) -> Any:
    """Return a tree of dataclasses as plain tuples."""
    if isinstance(value, Span):
        return None
    if dataclasses.is_dataclass(value):
        names = [each.name for each in dataclasses.fields(value) if each.name not in _PLACES]
        return (type(value).__name__, *(without_places(getattr(value, name)) for name in names))
    if isinstance(value, tuple):
        return tuple(without_places(item) for item in value)
    return value
