"""Check the types and bounds of values in a schema that was built in Python.

Schemas from documents have no such faults: the reader checks each value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from promptcache.diagnostics import FLAG, TEXT, Diagnostic, Kind, Span, diagnostic, instance, is_text, one_of, shown
from promptcache.language.limits import MAX_DEPTH
from promptcache.language.syntax.attributes import attributes_of
from promptcache.language.syntax.elements import ELEMENTS
from promptcache.language.syntax.member_files import ListedMembers
from promptcache.language.syntax.nodes import (
    IN_PYTHON,
    AnswerFormat,
    Choose,
    Member,
    Role,
    SchemaDocument,
    Text,
)


def _is_members(value: object) -> bool:
    if isinstance(value, ListedMembers):  # checked when their file was read
        return True
    return isinstance(value, Mapping) and all(is_text(name) and isinstance(value[name], Member) for name in value)


def _is_places(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(each, tuple) and len(each) == 2 and _is_spans(each[1]) for each in value
    )


def _is_spans(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(span, Span) for span in value)


_CHILDREN = instance("a tuple", tuple, list)
_KINDS: Mapping[str, Kind] = {
    "str": TEXT,
    "str | None": TEXT | None,
    "bool": FLAG,
    "Span": instance("a Span", Span),
    "Places": Kind("a tuple of pairs of a name and a tuple of Spans", _is_places),
    "Role": one_of(Role),
    "Mapping[str, Member]": Kind("a mapping of names to members", _is_members),
}
"""Values of fields that are no attributes, by annotation. All other such fields are `children`."""


@cache
def _fields(node: Any) -> tuple[tuple[str, Kind, object], ...]:
    """Return the name, kind and default of each field of a node."""
    kinds = {each.name: _KINDS.get(str(each.type), _CHILDREN) for each in fields(node)}
    for each in attributes_of(node):
        kind = FLAG if each.alias_of else each.kind.in_python
        kinds[each.field] = kind | None if each.optional else kind
    return tuple((each.name, kinds[each.name], each.default) for each in fields(node))


_NO_NODES = ("include", "prompt")  # a node has the included items, and the text of the prompt
_HOLD: Mapping[type, tuple[type, ...]] = {
    element.node: tuple(dict.fromkeys(ELEMENTS[name].node for name in element.children if name not in _NO_NODES))
    for element in ELEMENTS.values()
}
"""Allowed types of children, by parent type."""


def value_faults(schema: SchemaDocument) -> Iterator[Diagnostic]:
    """Yield a diagnostic for every value and child that a document could not contain."""
    yield from _values(schema, SchemaDocument)
    if _CHILDREN.takes(schema.children):
        for child in schema.children:
            yield from _item_faults(child, _HOLD[SchemaDocument], schema, depth=2)


def answer_value_faults(answer: AnswerFormat) -> Iterator[Diagnostic]:
    """Yield a diagnostic for every value of an answer that a document could not contain."""
    yield from _values(answer, AnswerFormat)


def _item_faults(item: object, allowed: tuple[type, ...], parent: object, *, depth: int) -> Iterator[Diagnostic]:
    """Yield the faults of an item and its children; `depth` counts the elements around its text in a document."""
    if not isinstance(item, allowed):
        message = f"{shown(item)} is not allowed in {_called(parent)}"
        fix = f"allowed: {', '.join(each.__name__ for each in allowed)}"
        yield diagnostic("PC102", message, _place(item), fix)
        return
    if depth > MAX_DEPTH and (not isinstance(item, Text) or item.exact):
        message = f"{_called(item)} is nested more than {MAX_DEPTH} deep"
        yield diagnostic("PC005", message, _place(item), "use fewer levels")
        return
    yield from _values(item, type(item))
    if isinstance(item, Choose) and item.minimum is None and item.maximum is None:
        yield diagnostic("PC104", "a Choose needs minimum or maximum", _place(item), "add minimum=1")
    children = getattr(item, "children", ())
    if _CHILDREN.takes(children):
        for child in children:
            yield from _item_faults(child, _HOLD[type(item)], item, depth=depth + 1)


def _values(item: object, kind: type) -> Iterator[Diagnostic]:
    for name, expected, default in _fields(kind):
        value = getattr(item, name)
        if value is not default and not expected.takes(value):
            message = f"{name}={shown(value)} of {_called(item)} is not allowed: {expected.words} is expected"
            yield diagnostic("PC105", message, _place(item))


def _called(item: object) -> str:
    if isinstance(item, SchemaDocument):
        return "the schema"
    kind, name = type(item).__name__.lower(), getattr(item, "name", None)
    article = "an" if kind[0] in "aeiou" else "a"
    return f"{article} {kind}" if name is None else f"{kind} {shown(name)}"


def _place(item: object) -> Span:
    found = getattr(item, "span", None)
    return found if isinstance(found, Span) else IN_PYTHON
