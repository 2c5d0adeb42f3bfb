"""Find the valid combinations of a schema's modules that have the least and the greatest weight.

A combination is the set of modules of a valid prompt. It includes union defaults and excludes the root.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from promptcache.language.rules.count import list_selections, open_solver
from promptcache.language.rules.rules import Rules


class Extreme(NamedTuple):
    """Combination of least or greatest weight; if it is not `exact`, a better one may exist."""

    modules: frozenset[str]
    weight: int
    exact: bool


class Combinations:
    """Valid combinations of a schema that has at least one."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def least(self, weights: Mapping[str, int]) -> Extreme:
        """Return a combination with the smallest total weight."""
        return self._extreme(weights, -1)

    def greatest(self, weights: Mapping[str, int]) -> Extreme:
        """Return a combination with the greatest total weight."""
        return self._extreme(weights, 1)

    def _extreme(self, weights: Mapping[str, int], sign: int) -> Extreme:
        def weight(modules: Iterable[str]) -> int:
            return sum(weights.get(module, 0) for module in modules)

        listed = list_selections(self._rules)
        if listed is not None:
            best = max(listed, key=lambda modules: sign * weight(modules))
            return Extreme(best, weight(best), exact=True)
        modules, exact = self._greedy([module for module in weights if module and weights[module]], weights, sign)
        return Extreme(modules, weight(modules), exact)

    def _greedy(self, wanted: list[str], weights: Mapping[str, int], sign: int) -> tuple[frozenset[str], bool]:
        """Add (or remove) modules in order of weight, heaviest first.

        The result is exact if each module that failed is impossible (or unavoidable) on its own.
        """
        granted: list[str] = []
        exact = True
        with open_solver(self._rules) as solver:
            for module in sorted(wanted, key=lambda module: -weights[module]):
                present, absent = ((*granted, module), ()) if sign > 0 else ((), (*granted, module))
                if solver.is_possible(present, absent):
                    granted.append(module)
                elif exact:
                    exact = not solver.is_possible(present[-1:], absent[-1:])
            found = solver.selection(granted if sign > 0 else (), granted if sign < 0 else ())
        return found or frozenset(), exact
