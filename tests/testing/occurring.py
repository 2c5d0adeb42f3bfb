"""Search for examples of a strategy that have given features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from typing import TypeVar

from hypothesis import Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

_T = TypeVar("_T")
_ROUNDS, _EXAMPLES = 12, 200


class _EnoughError(Exception):
    """All wanted features have occurred."""


def occurring(strategy: SearchStrategy[_T], names: Callable[[_T], Iterable[str]], wanted: Set[str]) -> set[str]:
    """Return the names that examples give; stops as soon as all that are `wanted` have occurred."""
    found: set[str] = set()

    @settings(max_examples=_EXAMPLES, database=None, phases=[Phase.generate], report_multiple_bugs=False)
    @given(value=strategy)
    def collect(value: _T) -> None:
        found.update(names(value))
        if wanted <= found:
            raise _EnoughError

    with suppress(_EnoughError):
        for number in range(_ROUNDS):
            seed(number)(collect)()
    return found
