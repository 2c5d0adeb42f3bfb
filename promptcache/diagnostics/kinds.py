"""Kinds of values that a Python caller may pass, and the check that refuses a value of another kind.

A `Kind` has words for a message and a test that never raises. Every room checks what comes in with `Kind.check`, which
raises the error class that the room names.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Collection
from enum import StrEnum
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

from promptcache.diagnostics.short import SURROGATE, shown


class Kind(NamedTuple):
    """What a parameter takes: in words, and whether it takes a value."""

    words: str
    takes: Callable[[object], bool]

    def __or__(self, other: object) -> Kind:
        """Return the same kind with None."""
        return Kind(f"{self.words} or None", lambda value: value is None or self.takes(value))

    def check(self, name: str, value: object, error: type[Exception]) -> None:
        """Refuse a value that is not of this kind.

        Raises:
            Exception: Of the class `error`, with the name, the value and what is expected.
        """
        if not self.takes(value):
            raise error(f"{name}={shown(value)} is not allowed: {self.words} is expected")


def is_text(value: object) -> bool:
    """Whether a value is text that UTF-8 can express."""
    return isinstance(value, str) and (value.isascii() or SURROGATE.search(value) is None)


def whole(least: int, most: int | None = None, unit: str = "") -> Kind:
    """Return whole numbers from `least` to `most`; a bool is none."""
    limits = f"from {least} on" if most is None else f"from {least} to {most}"
    return Kind(f"a whole number {f'of {unit} ' if unit else ''}{limits}", partial(_is_whole, least, most))


def one_of(choices: type[StrEnum]) -> Kind:
    """Return the values of an enumeration, or their texts."""
    return Kind(f"one of {', '.join(choices)}", lambda value: isinstance(value, str) and value in [*choices])


def instance(words: str, *types: type) -> Kind:
    """Return objects of these types."""
    return Kind(words, lambda value: isinstance(value, types))


def tuple_of(words: str, *types: type) -> Kind:
    """Return tuples and lists of objects of these types."""
    return Kind(words, lambda value: isinstance(value, tuple | list) and all(isinstance(each, types) for each in value))


def _is_whole(least: int, most: int | None, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value and (most is None or value <= most)


def _is_number(least: float, value: Any) -> bool:
    real: Any = value if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    return bool(least <= real <= sys.float_info.max)


def _is_path(value: object) -> bool:
    """Whether a value can name a file; Python writes bytes of names that are not UTF-8 as lone surrogates."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(path, str) or not path or "\0" in path:
        return False
    try:
        path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def number(least: float) -> Kind:
    """Return finite numbers from `least` on; a bool is none."""
    return Kind(f"a number from {least} on", partial(_is_number, least))


BYTES = Kind("a whole number of bytes from 0 on, below 2**63,", whole(0, 2**63 - 1).takes)
TEXT = Kind("text without lone surrogates", is_text)
TEXTS = Kind(
    "a list of texts",
    lambda value: isinstance(value, Collection) and not isinstance(value, str) and all(map(is_text, value)),
)
FLAG = Kind("True or False", lambda value: isinstance(value, bool))
PATH = Kind("a path", _is_path)
FUNCTION = Kind("a function", callable)
