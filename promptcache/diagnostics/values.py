"""Checks of values that callers pass in, and short representations of values for messages.

A `Kind` has words for the message and a test that never raises. A representation is one line; it takes little time for
any value and never raises.
"""

from __future__ import annotations

import math
import os
import re
import reprlib
import sys
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import fields
from enum import Enum, StrEnum
from functools import partial
from numbers import Real
from typing import Any, NamedTuple, TypeGuard

from promptcache.diagnostics.records import Span

SURROGATE = re.compile("[\ud800-\udfff]")
_LENGTH = 60
_YEAR_S = 366 * 24 * 3600


class _Repr(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:
            return f"<int of more than {sys.get_int_max_str_digits()} digits>"

    def repr_str(self, x: str, level: int) -> str:
        found = None if x.isascii() else SURROGATE.search(x)
        return super().repr_str(x if found is None else x[max(0, found.start() - _LENGTH // 4) :], level)


def shown(value: object) -> str:
    """Return a short representation of a value. Of text with a lone surrogate, it shows the part around it."""
    short = _Repr()
    short.maxlevel = 2
    short.maxstring = short.maxother = short.maxlong = _LENGTH
    return short.repr(value)


class Short:
    """Base class of records, made with `@dataclass(repr=False)`, with a short repr.

    Collections are counted ("21 modules"). A nested record with a name is shown by its name. Fields that are None,
    empty or False are left out, and so are spans.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        record: Any = self
        shown_fields = (_field(each.name, getattr(self, each.name)) for each in fields(record) if each.repr)
        return f"{type(self).__name__}({', '.join(filter(None, shown_fields))})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the same text in Hypothesis and IPython, instead of all fields."""
        printer.text(repr(self))


def _field(name: str, value: object) -> str | None:
    match value:
        case None | False | Span():
            return None
        case str() | bytes() | Enum():
            return f"{name}={shown(str(value) if isinstance(value, Enum) else value)}" if value else None
        case Sequence() | Mapping() | Set():
            return f"{len(value)} {name}" if value else None
        case float():
            return f"{name}={value:.4g}"
        case Short():
            named = getattr(value, "name", None)
            return f"{name}={value!r}" if named is None else f"{name}={shown(named)}"
        case _:
            return f"{name}={shown(value)}"


class Kind(NamedTuple):
    """The values that a parameter takes.

    Attributes:
        words: A description.
        takes: A test.
        base: The type of those that can be written as text: int, float, bool, str or Path.
        unit: What is counted, such as "bytes".
        choices: All values, if they are few texts.
    """

    words: str
    takes: Callable[[object], bool]
    base: type = str
    unit: str = ""
    choices: tuple[str, ...] = ()

    def __or__(self, other: object) -> Kind:
        """Return the same kind with None allowed."""
        return self._replace(words=f"{self.words} or None", takes=lambda value: value is None or self.takes(value))

    def check(self, name: str, value: object, error: type[Exception]) -> None:
        """Refuse a value that is not of this kind.

        Raises:
            Exception: Of the class `error`, with the name, the value and the expected kind.
        """
        if not self.takes(value):
            raise error(f"{name}={shown(value)} is not allowed: {self.words} is expected")


def is_text(value: object) -> TypeGuard[str]:
    """Whether a value is text that UTF-8 can encode."""
    return isinstance(value, str) and (value.isascii() or SURROGATE.search(value) is None)


def whole(least: int, most: int | None = None, unit: str = "") -> Kind:
    """Return the kind of whole numbers from `least` to `most`, without bools."""
    limits = f"from {least} on" if most is None else f"from {least} to {most}"
    words = f"a whole number {f'of {unit} ' if unit else ''}{limits}"
    return Kind(words, partial(_is_whole, least, most), base=int, unit=unit)


def one_of(choices: type[StrEnum]) -> Kind:
    """Return the kind of an enumeration's values, or their texts."""
    values = tuple(map(str, choices))
    return Kind(f"one of {', '.join(values)}", lambda value: isinstance(value, str) and value in values, choices=values)


def instance(words: str, *types: type) -> Kind:
    """Return the kind of objects of these types."""
    return Kind(words, lambda value: isinstance(value, types))


def tuple_of(words: str, *types: type) -> Kind:
    """Return the kind of tuples and lists of objects of these types."""
    return Kind(words, lambda value: isinstance(value, tuple | list) and all(isinstance(each, types) for each in value))


def _is_whole(least: int, most: int | None, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value and (most is None or value <= most)


def _is_number(least: float, most: float, value: Any) -> bool:
    real: Any = value if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    return bool(least <= real <= most)


def _is_path(value: object) -> bool:
    """Whether a value can name a file. Python writes file names that are not UTF-8 with lone surrogates."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or not path or "\0" in path:
        return False
    try:
        path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def number(least: float, most: float = sys.float_info.max) -> Kind:
    """Return the kind of finite numbers from `least` to `most`, without bools."""
    limits = f"from {least} on" if most == sys.float_info.max else f"from {least} to {most}"
    return Kind(f"a number {limits}", partial(_is_number, least, most), base=float)


def _bytes_from(least: int) -> Kind:
    return whole(least, 2**63 - 1, "bytes")._replace(words=f"a whole number of bytes from {least} on, below 2**63,")


BYTES = _bytes_from(0)
BYTES_ABOVE_0 = _bytes_from(1)
ABOVE_0 = Kind("a number above 0", lambda value: _is_number(0, sys.float_info.max, value) and value != 0, base=float)
SECONDS = Kind(
    f"a number above 0, at most {_YEAR_S:,} (a year),",  # timers cannot wait for any time
    lambda value: _is_number(0, _YEAR_S, value) and value != 0,
    base=float,
    unit="seconds",
)
TEXT = Kind("text without lone surrogates", is_text)
TEXTS = Kind(
    "a list of texts",
    lambda value: isinstance(value, Collection) and not isinstance(value, str) and all(map(is_text, value)),
)
FLAG = Kind("True or False", lambda value: isinstance(value, bool), base=bool)
PATH = Kind("a path", _is_path)
FUNCTION = Kind("a function", callable)
