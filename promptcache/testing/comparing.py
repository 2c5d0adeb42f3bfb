"""Schemas and prompts without their places: what has to be the same after printing and reading.

Comes in: checked schemas and selections. Goes out: plain values that can be compared.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

from promptcache.diagnostics import Span
from promptcache.language import CheckedSchema, Selection, check_schema, parse_schema, print_schema
from promptcache.language.rules.rules import Check, Exclusive, Rule
from promptcache.language.syntax.files import Files

_PLACES = frozenset({"span", "places", "source"})


def printed_again(schema: CheckedSchema, folder: Files | None) -> tuple[str, CheckedSchema]:
    """Return a schema's declaration as printed, and what that reads as; `src` files lie in `folder`."""
    printed = print_schema(schema.source)
    return printed, check_schema(parse_schema(printed, folder=folder))


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


def content(schema: CheckedSchema) -> tuple[object, ...]:
    """Return what a checked schema means: its shape, but for what scaffolds are called and how rules are worded."""
    scaffolds = [(each.members, each.guaranteed) for each in schema.scaffolds]
    unnamed = replace(schema, scaffolds=(), rules=replace(schema.rules, rules=()))
    return (shape(unnamed), scaffolds, {_clause(rule) for rule in schema.rules.rules})


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


def _clause(rule: Rule) -> tuple[object, ...]:
    if isinstance(rule, Exclusive):
        return (rule.kind, rule.parent, rule.members)
    if isinstance(rule, Check):
        return (rule.kind, rule.test)
    return (rule.kind, frozenset(rule.when), rule.then)
