"""Check the types and bounds of values in a schema that was built in Python.

Schemas from documents have no such faults: the reader checks each value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, fields
from typing import Any

from promptcache.diagnostics import FLAG, TEXT, Diagnostic, Kind, Span, instance, is_text, one_of, shown, whole
from promptcache.language.syntax.attributes import MAX_SEPARATOR
from promptcache.language.syntax.member_files import ListedMembers
from promptcache.language.syntax.nodes import (
    IN_PYTHON,
    AnswerFormat,
    Assert,
    Choose,
    Collection,
    Context,
    Doc,
    Example,
    Exclude,
    Item,
    Member,
    Module,
    Parameter,
    ParameterType,
    Placement,
    Require,
    Role,
    RuleList,
    Scaffold,
    SchemaDocument,
    Text,
    Turn,
    Union,
    Whitespace,
)
from promptcache.language.syntax.repair import REPAIR
from promptcache.language.syntax.source import diagnostic
from promptcache.language.syntax.xml import MAX_DEPTH

_MOST = 999_999_999
"""Largest number that an attribute of a document can have."""


def _is_paths(value: object) -> bool:
    return isinstance(value, tuple | list) and all(map(is_text, value))


def _is_some_paths(value: Any) -> bool:
    return _is_paths(value) and len(value) > 0


def _is_choices(value: Any) -> bool:
    return _is_paths(value) and len({*value}) == len(value) and not any(not each or "|" in each for each in value)


def _is_members(value: object) -> bool:
    if isinstance(value, ListedMembers):  # checked when their file was read
        return True
    return isinstance(value, Mapping) and all(is_text(name) and isinstance(value[name], Member) for name in value)


def _is_separator(value: Any) -> bool:
    return is_text(value) and len(value) <= MAX_SEPARATOR


def _is_places(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(each, tuple) and len(each) == 2 and _is_spans(each[1]) for each in value
    )


def _is_spans(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(span, Span) for span in value)


_CHILDREN = instance("a tuple", tuple, list)
_KIND_OF_FIELD: Mapping[str, Kind] = {
    "length": whole(1, _MOST),
    "reserve": whole(1, _MOST),
    "minimum": whole(0, _MOST),
    "maximum": whole(0, _MOST),
    "separator": Kind(f"text of at most {MAX_SEPARATOR} characters", _is_separator),
    "choices": Kind("a tuple of different texts that are not empty and have no |", _is_choices),
    "modules": Kind('a tuple of one path or more, such as ("a", "b/c"),', _is_some_paths),
    "children": _CHILDREN,
    "listed": Kind("a mapping of names to members", _is_members),
    "repair": REPAIR,
}
_KIND_OF_TYPE: Mapping[str, Kind] = {
    "str": TEXT,
    "bool": FLAG,
    "tuple[str, ...]": Kind('a tuple of paths, such as ("a", "b/c"),', _is_paths),
    "Span": instance("a Span", Span),
    "Places": Kind("a tuple of pairs of a name and a tuple of Spans", _is_places),
    **{kind.__name__: one_of(kind) for kind in (Role, ParameterType, Context, Placement, Whitespace)},
}


def _kind(field: Field[Any]) -> Kind:
    """Return the values that a field of a node may have: by its name, or by its annotation."""
    annotation, optional, _ = str(field.type).partition(" | None")
    kind = _KIND_OF_FIELD.get(field.name) or _KIND_OF_TYPE[annotation]
    return kind | None if optional else kind


_NODES = (
    *(Text, Doc, AnswerFormat, Parameter, Turn, Module, Union, Collection, Scaffold),
    *(Require, Exclude, Choose, Assert, RuleList, Example, SchemaDocument),
)
_FIELDS: Mapping[type, tuple[tuple[str, Kind, object], ...]] = {
    node: tuple((field.name, _kind(field), field.default) for field in fields(node)) for node in _NODES
}
"""Name, kind and default of each field, by node type."""

_INSIDE = (Text, Doc, Parameter, Module, Union, Collection, Turn, Scaffold)
_HOLD: Mapping[type, tuple[type, ...]] = {
    Module: _INSIDE,
    Turn: _INSIDE,
    Union: (Module, Doc),
    Collection: (Module, Doc),
    RuleList: (Require, Exclude, Choose, Assert, Doc),
}
"""Allowed types of children, by parent type; at the top level every item is allowed."""


def value_faults(schema: SchemaDocument) -> Iterator[Diagnostic]:
    """Yield a diagnostic for every value and child that a document could not contain."""
    yield from _values(schema, SchemaDocument)
    if _CHILDREN.takes(schema.children):
        for child in schema.children:
            yield from _item_faults(child, Item.__args__, schema, depth=2)


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
    for name, expected, default in _FIELDS[kind]:
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
