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
from promptcache.language.syntax import nodes
from promptcache.language.syntax.attributes import attributes_of
from promptcache.language.syntax.elements import ELEMENTS
from promptcache.language.syntax.member_files import ListedMembers
from promptcache.language.syntax.nodes import IN_PYTHON


def _is_members(value: object) -> bool:
    if isinstance(value, ListedMembers):  # checked when their file was read
        return True
    return isinstance(value, Mapping) and all(is_text(name) and isinstance(value[name], nodes.Member) for name in value)


def _is_places(value: object) -> bool:
    if not isinstance(value, tuple) or not all(isinstance(each, tuple) and len(each) == 2 for each in value):
        return False
    return all(isinstance(spans, tuple) and all(isinstance(span, Span) for span in spans) for _, spans in value)


_CHILDREN = instance("a tuple", tuple, list)
_KINDS: Mapping[str, Kind] = {
    "str": TEXT,
    "str | None": TEXT | None,
    "bool": FLAG,
    "Span": instance("a Span", Span),
    "Places": Kind("a tuple of pairs of a name and a tuple of Spans", _is_places),
    "Role": one_of(nodes.Role),
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


_HOLD: Mapping[type, tuple[type, ...]] = {
    element.node: tuple(
        dict.fromkeys(ELEMENTS[name].node for name in element.children if name not in {"include", "prompt"})
    )
    for element in ELEMENTS.values()
}
"""Allowed types of children, by parent type. A node has the included items, and the text of a prompt."""


def value_faults(schema: nodes.SchemaDocument) -> Iterator[Diagnostic]:
    """Yield a diagnostic for every value and child that a document could not contain."""
    yield from field_faults(schema, nodes.SchemaDocument)
    if _CHILDREN.takes(schema.children):
        for child in schema.children:
            yield from _item_faults(child, _HOLD[nodes.SchemaDocument], schema, depth=2)


def _item_faults(item: object, allowed: tuple[type, ...], parent: object, *, depth: int) -> Iterator[Diagnostic]:
    """Yield the faults of an item and its children; `depth` counts the elements around its text in a document."""
    if not isinstance(item, allowed):
        message = f"{shown(item)} is not allowed in {_called(parent)}"
        fix = f"allowed: {', '.join(each.__name__ for each in allowed)}"
        yield diagnostic("PC102", message, _place(item), fix)
        return
    if depth > MAX_DEPTH and (not isinstance(item, nodes.Text) or item.exact):
        message = f"{_called(item)} is nested more than {MAX_DEPTH} deep"
        yield diagnostic("PC005", message, _place(item), "use fewer levels")
        return
    yield from field_faults(item, type(item))
    if isinstance(item, nodes.Choose) and item.minimum is None and item.maximum is None:
        yield diagnostic("PC104", "a Choose needs minimum or maximum", _place(item), "add minimum=1")
    children = getattr(item, "children", ())
    if _CHILDREN.takes(children):
        for child in children:
            yield from _item_faults(child, _HOLD[type(item)], item, depth=depth + 1)


def field_faults(item: object, kind: type) -> Iterator[Diagnostic]:
    """Yield a diagnostic for every value of an item that a document could not contain; children are not checked."""
    for name, expected, default in _fields(kind):
        value = getattr(item, name)
        if value is not default and not expected.takes(value):
            message = f"{name}={shown(value)} of {_called(item)} is not allowed: {expected.words} is expected"
            yield diagnostic("PC105", message, _place(item))


def _called(item: object) -> str:
    if isinstance(item, nodes.SchemaDocument):
        return "the schema"
    kind, name = type(item).__name__.lower(), getattr(item, "name", None)
    article = "an" if kind[0] in "aeiou" else "a"
    return f"{article} {kind}" if name is None else f"{kind} {shown(name)}"


def _place(item: object) -> Span:
    found = getattr(item, "span", None)
    return found if isinstance(found, Span) else IN_PYTHON
