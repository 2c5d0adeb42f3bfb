"""Versions of schemas, and the ranges of them that prompts ask for.

Comes in: texts such as `1.4` and `>=1.2, <2`. Goes out: whether a version lies in a range. A version is numbers joined
by dots, with `-` and a word behind them for what comes before that release. This file knows neither schema nor prompt.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import TypeAlias

_VERSION = re.compile(r"v?([0-9]{1,9}(?:\.[0-9]{1,9}){0,9})(?:-([0-9A-Za-z.-]{1,50}))?")
_BOUND = re.compile(r"(>=|<=|==|!=|>|<|=)?\s*(\S+)")
_MAX_RANGE = 1_000  # characters
_Key: TypeAlias = tuple[tuple[int, ...], bool, str]

_COMPARE: dict[str, Callable[[_Key, _Key], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "=": operator.eq,
    "": operator.eq,
    "!=": operator.ne,
}


def is_version(text: str) -> bool:
    """Whether `text` is a version that can be compared with others."""
    return _VERSION.fullmatch(text) is not None


def is_range(text: str) -> bool:
    """Whether `text` is a list of bounds, separated by commas."""
    if len(text) > _MAX_RANGE:
        return False
    return all((found := _BOUND.fullmatch(bound.strip())) and is_version(found[2]) for bound in text.split(","))


def in_range(version: str, bounds: str) -> bool:
    """Whether a version satisfies every bound of a range."""
    for bound in bounds.split(","):
        found = _BOUND.fullmatch(bound.strip())
        assert found is not None, "the range has been checked"
        if not _COMPARE[found[1] or ""](_key(version), _key(found[2])):
            return False
    return True


def _key(version: str) -> _Key:
    found = _VERSION.fullmatch(version)
    assert found is not None, "the version has been checked"
    numbers = [int(number) for number in found[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers), found[2] is None, found[2] or ""
