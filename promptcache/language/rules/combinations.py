"""The valid combinations of a schema's modules: a list of them, and those of the least and the greatest weight.

A combination is the set of modules of a valid prompt, with defaults of unions and without the root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from threading import Timer
from typing import NamedTuple

from pysat.solvers import Solver

from promptcache.language.rules.formula import SOLVER_LOCK, at_most_one, formula_of, literals, solving
from promptcache.language.rules.rules import Rules

_MAX_LITERALS = 2_000_000  # of the clauses that exclude combinations already listed
_SEARCH_S = 2.0


class Extreme(NamedTuple):
    """A combination of least or greatest weight. If it is not `exact`, the search ended before this was proved."""

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
        self._modules = list(rules.order)
        self._number = {module: index + 1 for index, module in enumerate(self._modules)}
        formula = formula_of(rules)
        fresh = count(formula.num_variables + 1)
        self._clauses = [[1], *(literals(clause) for clause in formula.clauses)]
        for group in formula.groups:
            self._clauses += at_most_one(group, fresh)

    @contextmanager
    def asking(self) -> Iterator[Callable[[Iterable[str]], frozenset[str] | None]]:
        """Yield a function that returns a combination with the given modules, if possible a small one, or None."""
        with solving(self._clauses) as solver:
            yield lambda modules: self._model(solver, [self._number[module] for module in modules])

    def listing(self, cap: int) -> Listing:
        """Return at most `cap` different combinations, fewer if there are thousands of modules.

        The first combinations together use every module that can be used.
        """
        cap = min(cap, _MAX_LITERALS // len(self._modules) + 1)
        unmet = dict.fromkeys(self._modules)
        found: list[frozenset[str]] = []
        with solving(self._clauses) as solver:
            while (each := self._unlisted(solver, unmet)) is not None:
                if len(found) == cap:
                    return Listing(tuple(found), complete=False)
                found.append(each)
                solver.add_clause([self._literal(module, each) for module in self._modules[1:]])
        return Listing(tuple(found), complete=True)

    def _unlisted(self, solver: Solver, unmet: dict[str, None]) -> frozenset[str] | None:
        """Return another combination, if possible with a module that no combination had before."""
        found = None
        while unmet and found is None:
            found = self._model(solver, [self._number[unmet.popitem()[0]]])
        found = self._model(solver, []) if found is None else found
        for module in found or ():
            unmet.pop(module, None)
        return found

    def least(self, weights: Mapping[str, int]) -> Extreme:
        """Return a combination of the smallest weight in all."""
        return self._extreme(weights, -1)

    def greatest(self, weights: Mapping[str, int]) -> Extreme:
        """Return a combination of the greatest weight in all."""
        return self._extreme(weights, 1)

    def _extreme(self, weights: Mapping[str, int], sign: int) -> Extreme:
        wanted = [(sign * self._number[module], weight) for module, weight in weights.items() if module and weight]
        found = _searched(self._clauses, wanted) if wanted else None
        modules = self._named(found) if found is not None else self._greedy(wanted)
        total = sum(weights.get(module, 0) for module in modules)
        return Extreme(modules, total, exact=found is not None or not wanted)

    def _greedy(self, wanted: Iterable[tuple[int, int]]) -> frozenset[str]:
        """Fix one literal after the other, the heaviest first, if a combination remains."""
        granted: list[int] = []
        with solving(self._clauses) as solver:
            for literal, _ in sorted(wanted, key=lambda wish: -wish[1]):
                if solver.solve(assumptions=[*granted, literal]):
                    granted.append(literal)
            return self._model(solver, granted) or frozenset()

    def _model(self, solver: Solver, assumed: list[int]) -> frozenset[str] | None:
        if not solver.solve(assumptions=assumed):
            return None
        return self._named(solver.get_model() or [])

    def _named(self, model: Iterable[int]) -> frozenset[str]:
        return frozenset(self._modules[number - 1] for number in model if 1 < number <= len(self._modules))

    def _literal(self, module: str, combination: frozenset[str]) -> int:
        """Return the literal that differs from a combination at one module."""
        return -self._number[module] if module in combination else self._number[module]


def _searched(clauses: Iterable[list[int]], wanted: Iterable[tuple[int, int]]) -> list[int] | None:
    """Return a model of the greatest weight, or None if the search takes too long."""
    from pysat.examples.rc2 import RC2Stratified  # slow to import, and `check` does not need it
    from pysat.formula import WCNF

    problem = WCNF()
    problem.extend(clauses)
    for literal, weight in wanted:
        problem.append([literal], weight=weight)
    with SOLVER_LOCK, RC2Stratified(problem, solver="g4", adapt=True) as search:
        timer = Timer(_SEARCH_S, search.interrupt)
        timer.start()
        try:
            model: list[int] | None = search.compute(expect_interrupt=True)
        finally:
            timer.cancel()
        return model
