"""Check the types and bounds of values in a schema that was built in Python.

Schemas from documents have no such faults: the reader checks each value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import MappingProxyType

from promptcache.diagnostics import FLAG, TEXT, Diagnostic, Kind, Span, instance, is_text, one_of, shown, whole
from promptcache.language.syntax.attributes import MAX_SEPARATOR
from promptcache.language.syntax.nodes import (
    IN_PYTHON,
    Assert,
    Choose,
    Context,
    Doc,
    Example,
    Exclude,
    Item,
    Module,
    Parameter,
    ParameterType,
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
from promptcache.language.syntax.repair import REPAIRS, is_repair

_MOST = 999_999_999


def _is_texts(value: object) -> bool:
    return isinstance(value, tuple | list) and all(map(is_text, value))


def _is_choices(value: object) -> bool:
    return (
        isinstance(value, tuple | list)
        and _is_texts(value)
        and len({*value}) == len(value)
        and not any(not each or "|" in each for each in value)
    )


_PATHS = Kind('a tuple of paths, as ("a", "b/c"),', _is_texts)
_CHOICES = Kind("a tuple of different texts, none empty and none with |,", _is_choices)
_CHILDREN = instance("a tuple", tuple, list)
_SEPARATOR = Kind(
    f"text of at most {MAX_SEPARATOR} characters",
    lambda value: isinstance(value, str) and is_text(value) and len(value) <= MAX_SEPARATOR,
)
_SPAN = instance("a Span", Span)


def _is_place(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and isinstance(value[1], tuple)
        and all(isinstance(span, Span) for span in value[1])
    )


_PLACES = Kind(
    "a tuple of pairs of a name and a tuple of Spans",
    lambda value: isinstance(value, tuple) and all(map(_is_place, value)),
)
_PLACED: Mapping[str, Kind] = MappingProxyType({"span": _SPAN, "places": _PLACES})

_FIELDS: Mapping[type, Mapping[str, Kind]] = MappingProxyType(
    {
        Text: {"text": TEXT, "span": _SPAN},
        Doc: {"text": TEXT, "span": _SPAN},
        Parameter: {
            "name": TEXT,
            "length": whole(1, _MOST),
            "default": TEXT | None,
            "placeholder": TEXT | None,
            "cut_placeholder": FLAG,
            "required": FLAG,
            "type": one_of(ParameterType),
            "choices": _CHOICES,
            "pattern": TEXT | None,
            "message": TEXT | None,
            **_PLACED,
        },
        Turn: {"role": one_of(Role), "children": _CHILDREN, "span": _SPAN},
        Module: {
            "name": TEXT,
            "required": FLAG,
            "requires": _PATHS,
            "excludes": _PATHS,
            "after": _PATHS,
            "cache": FLAG | None,
            "reserve": whole(1, _MOST) | None,
            "separator": _SEPARATOR | None,
            "context": one_of(Context) | None,
            "whitespace": one_of(Whitespace) | None,
            "children": _CHILDREN,
            **_PLACED,
        },
        Union: {"name": TEXT | None, "required": FLAG, "default": TEXT | None, "children": _CHILDREN, **_PLACED},
        Scaffold: {"modules": _PATHS, "name": TEXT | None, **_PLACED},
        Require: {"condition": TEXT, "consequence": TEXT, "message": TEXT | None, **_PLACED},
        Exclude: {"modules": _PATHS, "message": TEXT | None, **_PLACED},
        Choose: {
            "modules": _PATHS,
            "minimum": whole(0, _MOST) | None,
            "maximum": whole(0, _MOST) | None,
            "message": TEXT | None,
            **_PLACED,
        },
        Assert: {"test": TEXT, "message": TEXT | None, **_PLACED},
        RuleList: {"children": _CHILDREN, "span": _SPAN},
        Example: {
            "prompt": TEXT,
            "prompt_span": _SPAN,
            "name": TEXT | None,
            "valid": FLAG | None,
            "contains": TEXT | None,
            **_PLACED,
        },
        SchemaDocument: {
            "name": TEXT,
            "version": TEXT | None,
            "separator": _SEPARATOR,
            "context": one_of(Context),
            "whitespace": one_of(Whitespace),
            "repair": Kind(REPAIRS, is_repair) | None,
            "children": _CHILDREN,
            **_PLACED,
        },
    }
)
_DEFAULTS: Mapping[type, Mapping[str, object]] = MappingProxyType(
    {kind: {field.name: field.default for field in fields(kind)} for kind in _FIELDS}
)
_INSIDE = (Text, Doc, Parameter, Module, Union, Turn, Scaffold)
_HOLD: Mapping[type, tuple[type, ...]] = MappingProxyType(
    {Module: _INSIDE, Turn: _INSIDE, Union: (Module, Doc), RuleList: (Require, Exclude, Choose, Assert, Doc)}
)
"""Types of the children that each type may hold; the top level may hold every item."""


def value_faults(schema: SchemaDocument) -> Iterator[Diagnostic]:
    """Yield a diagnostic for every value and child that a document could not contain."""
    yield from _values(schema, SchemaDocument)
    if _CHILDREN.takes(schema.children):
        for child in schema.children:
            yield from _item_faults(child, Item.__args__, schema)


def _item_faults(item: object, allowed: tuple[type, ...], parent: object) -> Iterator[Diagnostic]:
    if not isinstance(item, allowed):
        message = f"{shown(item)} cannot stand in {_called(parent)}"
        fix = f"it holds {', '.join(each.__name__ for each in allowed)}"
        yield Diagnostic(code="PC102", message=message, span=_place(item), help=fix)
        return
    yield from _values(item, type(item))
    children = getattr(item, "children", ())
    if _CHILDREN.takes(children):
        for child in children:
            yield from _item_faults(child, _HOLD[type(item)], item)


def _values(item: object, kind: type) -> Iterator[Diagnostic]:
    for name, expected in _FIELDS[kind].items():
        value = getattr(item, name)
        if value is not _DEFAULTS[kind][name] and not expected.takes(value):
            message = f"{name}={shown(value)} of {_called(item)} is not allowed: {expected.words} is expected"
            yield Diagnostic(code="PC105", message=message, span=_place(item))


def _called(item: object) -> str:
    if isinstance(item, SchemaDocument):
        return "the schema"
    kind, name = type(item).__name__.lower(), getattr(item, "name", None)
    return f"a {kind}" if name is None else f"{kind} {shown(name)}"


def _place(item: object) -> Span:
    found = getattr(item, "span", None)
    return found if isinstance(found, Span) else IN_PYTHON
