"""What a template may do: which constructs, filters and methods, and how much of anything.

Comes in: values and operations of a running template. Goes out: the same values, or a `TemplateLimitError`. This file
limits mistakes and accidents; it is no wall against an attacker who has all the time in the world.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from jinja2 import Undefined, filters, nodes
from markupsafe import Markup, escape

from promptcache.language.syntax.source import MAX_BYTES

MAX_SOURCE = 1024 * 1024
MAX_TAGS = 5_000
MAX_TAG = 5_000
MAX_TEXT = 2 * 1024 * 1024
_MAX_STEPS = 200_000
_MAX_SECONDS = 2.0
_MAX_ITEMS = 200_000
_MAX_BITS = 4_000
_MAX_DEPTH = 50

Plain: TypeAlias = str | int | float | bool | list["Plain"] | dict[str, "Plain"] | None
"""What a context holds: the types of JSON."""

ALLOWED_NODES = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.For, nodes.If, nodes.Assign, nodes.Operand),
    *(nodes.Name, nodes.Const, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Compare, nodes.CondExpr, nodes.Keyword),
    *(nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos, nodes.Concat, nodes.Filter, nodes.Test, nodes.Call),
    *(nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.Pow, nodes.List, nodes.Tuple),
)
"""The constructs of a template: text, values, `for`, `if` and `set`. No macros, blocks, imports and includes."""

METHODS = frozenset({"items", "keys", "values", "get", "upper", "lower", "strip", "startswith", "endswith", "split"})
"""The methods that can be called, on texts and mappings."""

_FILTERS = (
    *(
        "default",
        "d",
        "upper",
        "lower",
        "trim",
        "length",
        "count",
        "first",
        "last",
        "sort",
        "unique",
        "title",
        "reverse",
    ),
    *("reverse", "capitalize", "abs", "int", "float", "string", "escape", "e", "dictsort", "items", "list", "sum"),
    *("min", "max", "map", "select", "reject", "selectattr", "rejectattr"),
)
ALLOWED_TESTS = frozenset(
    {
        *("defined", "undefined", "none", "string", "number", "integer", "float", "mapping", "sequence", "boolean"),
        *("true", "false", "eq", "equalto", "==", "ne", "!=", "lt", "<", "le", "<=", "gt", ">", "ge", ">=", "in"),
        *("odd", "even", "divisibleby", "lower", "upper"),
    }
)


class TemplateLimitError(Exception):
    """A template that does too much, or something it may not do; `code` says which."""

    def __init__(self, message: str, code: str = "PC604") -> None:
        super().__init__(message)
        self.code = code


class Budget:
    """What one rendering may still spend."""

    def __init__(self) -> None:
        self._steps = 0
        self._stop = time.thread_time() + _MAX_SECONDS

    def spend(self) -> None:
        """Take one step."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise TemplateLimitError(f"the template takes more than {_MAX_STEPS} steps")
        if time.thread_time() > self._stop:
            raise TemplateLimitError(f"the template takes more than {_MAX_SECONDS:g} seconds")

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield items, each of which is a step."""
        for item in items:
            self.spend()
            yield item

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters that a template may use."""
        own = {"join": self._join, "tojson": _to_json, "counted items": self.counted, "joined text": self._concatenate}
        return {**{name: filters.FILTERS[name] for name in _FILTERS}, **own}

    def operate(self, operator: str, left: Any, right: Any) -> None:
        """Refuse an operation whose result would be large, and `%` on text."""
        self.spend()
        if operator == "%" and isinstance(left, str):
            raise TemplateLimitError("'%' does not format text in a template", "PC602")
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * (max(right, 1) if operator == "**" else 1)
            if max(bits, left.bit_length() + right.bit_length() if operator == "*" else 0) > _MAX_BITS:
                raise TemplateLimitError(f"'{operator}' gives a number of more than {_MAX_BITS} bits")
        elif operator == "*" and (_is_long(left) or _is_long(right)):
            times, size = (right, len(left)) if _is_long(left) else (left, len(right))
            if isinstance(times, int) and times * size > _MAX_ITEMS:
                raise TemplateLimitError(f"'*' gives more than {_MAX_ITEMS} characters or items")
        elif operator == "+" and _is_long(left) and _is_long(right) and len(left) + len(right) > _MAX_ITEMS:
            raise TemplateLimitError(f"'+' gives more than {_MAX_ITEMS} characters or items")

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | None = None) -> str:
        items = [item[attribute] if attribute is not None else item for item in self.counted(value)]
        return self._concatenate([piece for item in items for piece in (d, item)][1:])

    def _concatenate(self, pieces: Iterable[Any]) -> str:
        self.spend()
        texts = [written(piece) for piece in pieces]
        if sum(len(text) if isinstance(text, str) else 1 for text in texts) > MAX_TEXT:
            raise TemplateLimitError(f"a text that is put together has more than {MAX_TEXT} characters")
        return Markup("").join(texts)


def written(value: Any) -> Any:
    """Return a value as it may be written: text and numbers as they are; lists and mappings are refused."""
    if isinstance(value, Undefined | str | int | float):
        return value
    if value is None:
        return ""
    message = f"a {type(value).__name__} cannot be written: use a filter, such as join or tojson"
    raise TemplateLimitError(message, "PC602")


def plain(value: object, where: str = "context", depth: int = 0) -> Plain:
    """Return a copy of plain data.

    Raises:
        TemplateLimitError: it holds anything else, a callable for one, or is nested too deeply.
    """
    if depth > _MAX_DEPTH:
        raise TemplateLimitError(f"{where[:80]} is nested more than {_MAX_DEPTH} deep", "PC605")
    if type(value) in {str, int, float, bool, type(None)}:
        return value  # type: ignore[return-value]  # checked by the exact type: a subclass could run code
    if isinstance(value, list | tuple) and type(value) in {list, tuple}:
        return [plain(item, f"{where}[{number}]", depth + 1) for number, item in enumerate(value)]
    if isinstance(value, Mapping) and type(value) is dict and all(type(name) is str for name in value):
        return {name: plain(item, f"{where}.{name}", depth + 1) for name, item in value.items()}
    message = f"{where[:80]} is of type {type(value).__name__}: text, numbers, lists and mappings can be given"
    raise TemplateLimitError(message, "PC605")


def _is_long(value: object) -> bool:
    return isinstance(value, str | list | tuple)


def _to_json(value: object) -> Markup:
    pieces, size = [], 0
    for piece in json.JSONEncoder(ensure_ascii=False).iterencode(value):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_BYTES:
            raise TemplateLimitError(f"a text has more than {MAX_BYTES} characters")
    return escape("".join(pieces))
