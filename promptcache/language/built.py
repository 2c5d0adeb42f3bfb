"""What no document can say, but what is built in Python can: values of another type, or out of their bounds.

Comes in: a schema as it was declared. Goes out: diagnostics. A schema that was read has none of these faults: its
values were checked where they stand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from promptcache.diagnostics import Diagnostic, Span
from promptcache.language.nodes import (
    IN_PYTHON,
    Assert,
    Choose,
    Context,
    Doc,
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

_MOST = 999_999_999


class _Kind(NamedTuple):
    """What a field takes: in words, and whether it takes a value."""

    words: str
    takes: Callable[[object], bool]

    def __or__(self, other: object) -> _Kind:
        """Return the same with None."""
        return _Kind(f"{self.words} or None", lambda value: value is None or self.takes(value))


def _number(least: int) -> _Kind:
    return _Kind(f"a whole number from {least} to {_MOST}", partial(_is_number, least))


def _is_number(least: int, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST


def _one_of(choices: type[StrEnum]) -> _Kind:
    return _Kind(f"one of {', '.join(choices)}", lambda value: isinstance(value, str) and value in [*choices])


def _is_texts(value: object) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(each, str) for each in value)


def _is_choices(value: object) -> bool:
    return (
        isinstance(value, tuple | list)
        and _is_texts(value)
        and len({*value}) == len(value)
        and not any(not each or "|" in each for each in value)
    )


_TEXT = _Kind("text", lambda value: isinstance(value, str))
_FLAG = _Kind("True or False", lambda value: isinstance(value, bool))
_PATHS = _Kind('a tuple of paths, as ("a", "b/c"),', _is_texts)
_CHOICES = _Kind("a tuple of different texts, none empty and none with |,", _is_choices)

_FIELDS: Mapping[type, Mapping[str, _Kind]] = MappingProxyType(
    {
        Text: {"text": _TEXT},
        Doc: {"text": _TEXT},
        Parameter: {
            "name": _TEXT,
            "length": _number(1),
            "default": _TEXT | None,
            "placeholder": _TEXT | None,
            "cut_placeholder": _FLAG,
            "required": _FLAG,
            "type": _one_of(ParameterType),
            "choices": _CHOICES,
            "pattern": _TEXT | None,
        },
        Turn: {"role": _one_of(Role)},
        Module: {
            "name": _TEXT,
            "required": _FLAG,
            "requires": _PATHS,
            "excludes": _PATHS,
            "after": _PATHS,
            "cache": _FLAG | None,
            "reserve": _number(1) | None,
            "separator": _TEXT | None,
            "context": _one_of(Context) | None,
            "whitespace": _one_of(Whitespace) | None,
        },
        Union: {"name": _TEXT | None, "required": _FLAG, "default": _TEXT | None},
        Scaffold: {"modules": _PATHS, "name": _TEXT | None},
        Require: {"condition": _TEXT, "consequence": _TEXT, "message": _TEXT | None},
        Exclude: {"modules": _PATHS, "message": _TEXT | None},
        Choose: {
            "modules": _PATHS,
            "minimum": _number(0) | None,
            "maximum": _number(0) | None,
            "message": _TEXT | None,
        },
        Assert: {"test": _TEXT, "message": _TEXT | None},
        SchemaDocument: {
            "name": _TEXT,
            "version": _TEXT | None,
            "separator": _TEXT,
            "context": _one_of(Context),
            "whitespace": _one_of(Whitespace),
        },
    }
)
_INSIDE = (Text, Doc, Parameter, Module, Union, Turn, Scaffold)
_HOLD: Mapping[type, tuple[type, ...]] = MappingProxyType(
    {Module: _INSIDE, Turn: _INSIDE, Union: (Module, Doc), RuleList: (Require, Exclude, Choose, Assert, Doc)}
)
"""What stands in what; at the top, everything that is an item."""


def built_faults(schema: SchemaDocument) -> Iterator[Diagnostic]:
    """Yield every value and every child that nothing which was read could have."""
    yield from _values(schema, SchemaDocument, "the schema")
    for child in schema.children:
        yield from _item_faults(child, Item.__args__, "the schema")


def _item_faults(item: object, allowed: tuple[type, ...], inside: str) -> Iterator[Diagnostic]:
    if not isinstance(item, allowed):
        message = f"{item!r:.60} cannot stand in {inside}"
        mend = f"it holds {', '.join(each.__name__ for each in allowed)}"
        yield Diagnostic(code="PC102", message=message, span=_place(item), help=mend)
        return
    where = _called(item)
    yield from _values(item, type(item), where)
    for child in getattr(item, "children", ()):
        yield from _item_faults(child, _HOLD[type(item)], where)


def _values(item: object, kind: type, where: str) -> Iterator[Diagnostic]:
    for name, expected in _FIELDS.get(kind, {}).items():
        value = getattr(item, name)
        if not expected.takes(value):
            message = f"{name}={value!r:.60} of {where} is not allowed: {expected.words} is expected"
            yield Diagnostic(code="PC105", message=message, span=_place(item))


def _called(item: object) -> str:
    kind, name = type(item).__name__.lower(), getattr(item, "name", None)
    return f"a {kind}" if name is None else f"{kind} {name!r:.60}"


def _place(item: object) -> Span:
    found = getattr(item, "span", None)
    return found if isinstance(found, Span) else IN_PYTHON
