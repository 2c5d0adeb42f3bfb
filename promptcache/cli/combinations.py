"""The valid combinations of a schema's modules: listed, asked for, and the shortest and longest of them.

Comes in: the rules of a schema, and what each module weighs. Goes out: sets of module paths. A combination holds the
modules that a prompt has, union defaults included; the root is left out. This file knows no text and no tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from threading import Timer
from typing import NamedTuple

from pysat.examples.rc2 import RC2Stratified
from pysat.formula import WCNF
from pysat.solvers import Solver

from promptcache.language.rules.formula import SOLVER_LOCK, at_most_one, formula_of, literals, solving
from promptcache.language.rules.rules import Rules

_MAX_LITERALS = 2_000_000  # of all the clauses that keep combinations from being listed twice
_SEARCH_S = 2.0


class Extreme(NamedTuple):
    """A combination of least or greatest weight; where it is not `exact`, none better was found in time."""

    modules: frozenset[str]
    weight: int
    exact: bool


class Listing(NamedTuple):
    """Combinations, and whether they are all."""

    found: tuple[frozenset[str], ...]
    complete: bool


class Combinations:
    """Answers about the valid combinations of a schema that has at least one."""

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
        """Give a function that returns a combination, preferably a small one, with the modules it is given."""
        with solving(self._clauses) as solver:
            yield lambda modules: self._model(solver, [self._number[module] for module in modules])

    def listing(self, cap: int) -> Listing:
        """Return combinations, each once and at most `cap` of them (fewer where there are thousands of modules).

        First come combinations that together use every module that can be used: a cut list has met them all, as far as
        the cap allows.
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
        """Return a further combination, with a module that no other one had as long as there are such."""
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
        problem = WCNF()
        problem.extend(self._clauses)
        wanted = [(sign * self._number[module], weight) for module, weight in weights.items() if module and weight]
        for literal, weight in wanted:
            problem.append([literal], weight=weight)
        found = _searched(problem) if wanted else None
        modules = self._named(found) if found is not None else self._greedy(wanted)
        total = sum(weights.get(module, 0) for module in modules)
        return Extreme(modules, total, exact=found is not None or not wanted)

    def _greedy(self, wanted: Iterable[tuple[int, int]]) -> frozenset[str]:
        """Grant one wish after the other, the heaviest first, as long as a combination remains."""
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
        """Return what differs from a combination at one module."""
        return -self._number[module] if module in combination else self._number[module]


def _searched(problem: WCNF) -> list[int] | None:
    """Return a model that loses the least weight, or None when none was found in time."""
    with SOLVER_LOCK, RC2Stratified(problem, solver="g4", adapt=True) as search:
        timer = Timer(_SEARCH_S, search.interrupt)
        timer.start()
        try:
            model: list[int] | None = search.compute(expect_interrupt=True)
        finally:
            timer.cancel()
        return model
