"""The valid combinations of a schema's modules: a list of them, and those of the least and the greatest weight.

A combination is the set of modules of a valid prompt, with defaults of unions and without the root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from promptcache.language.rules.count import list_selections, open_solver
from promptcache.language.rules.rules import Rules
from promptcache.language.rules.solver import RuleSolver

_MAX_LITERALS = 2_000_000  # of the clauses that exclude combinations already listed


class Extreme(NamedTuple):
    """A combination of least or greatest weight. If it is not `exact`, another one may be better."""

    modules: frozenset[str]
    weight: int
    exact: bool


class Listing(NamedTuple):
    """Combinations, and whether these are all."""

    found: tuple[frozenset[str], ...]
    complete: bool


class Combinations:
    """The valid combinations of a schema that has at least one."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    @contextmanager
    def asking(self) -> Iterator[Callable[[Iterable[str]], frozenset[str] | None]]:
        """Yield a function that returns a combination with the given modules, if possible a small one, or None."""
        with open_solver(self._rules) as solver:
            yield solver.selection

    def listing(self, cap: int) -> Listing:
        """Return at most `cap` different combinations, fewer if there are thousands of modules.

        The first combinations together use every module that can be used.
        """
        cap = min(cap, _MAX_LITERALS // len(self._rules.order) + 1)
        unmet = dict.fromkeys(self._rules.order)
        found: list[frozenset[str]] = []
        with open_solver(self._rules) as solver:
            while (each := _unlisted(solver, unmet)) is not None:
                if len(found) == cap:
                    return Listing(tuple(found), complete=False)
                found.append(each)
                solver.exclude(each)
        return Listing(tuple(found), complete=True)

    def least(self, weights: Mapping[str, int]) -> Extreme:
        """Return a combination of the smallest weight in all."""
        return self._extreme(weights, -1)

    def greatest(self, weights: Mapping[str, int]) -> Extreme:
        """Return a combination of the greatest weight in all."""
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
        """Use, or leave out, one module after another, the heaviest first; exact if only impossible wishes fail."""
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


def _unlisted(solver: RuleSolver, unmet: dict[str, None]) -> frozenset[str] | None:
    """Return a further combination, with a module that no other one had as long as there are such."""
    found = None
    while unmet and found is None:
        found = solver.selection((unmet.popitem()[0],))
    found = solver.selection() if found is None else found
    for module in found or ():
        unmet.pop(module, None)
    return found
