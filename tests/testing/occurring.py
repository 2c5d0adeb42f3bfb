"""What occurs among the examples of a strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import TypeVar

from hypothesis import Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

_T = TypeVar("_T")
_ROUNDS, _EXAMPLES = 12, 200


def occurring(strategy: SearchStrategy[_T], names: Callable[[_T], Iterable[str]], wanted: Set[str]) -> set[str]:
    """Return the names that examples give; stops early when all that are `wanted` have occurred."""
    found: set[str] = set()

    @settings(max_examples=_EXAMPLES, database=None, phases=[Phase.generate])
    @given(value=strategy)
    def collect(value: _T) -> None:
        found.update(names(value))

    for number in range(_ROUNDS):
        seed(number)(collect)()
        if wanted <= found:
            break
    return found
