"""Rules in numbers, and the solver that answers about them.

Comes in: clauses over variables, which count from 1. Goes out: answers of python-sat. This file knows no modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import NamedTuple

from pysat.solvers import Solver

from promptcache.language.rules.rules import Implication, Rules
from promptcache.locks import new_rlock

SOLVER_LOCK = new_rlock()
"""python-sat keeps jump buffers and signal handlers for the whole process: one thread at a time."""

_PAIRWISE = 5
_STEPS_OF_PROPAGATION = 5
_STEPS_OF_CONFLICT = 500


class TooHardError(Exception):
    """A question about rules costs more steps than its budget has."""


class Budget:
    """What answers about rules may cost.

    A step is about the time in which one variable is read, and counted the same on every machine: a variable or clause
    that is followed, a propagation and a conflict of the solver are so many steps each.
    """

    def __init__(self, steps: int) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Take steps.

        Raises:
            TooHardError: there are not so many left.
        """
        self._left -= steps
        if self._left < 0:
            raise TooHardError

    def solve(self, solver: Solver, assumptions: Sequence[int]) -> bool:
        """Return whether a solver finds a model; errors are those of `spend`."""
        self.spend(len(assumptions))
        before = _num_steps(solver)
        solver.prop_budget(self._left // _STEPS_OF_PROPAGATION + 1)
        solver.conf_budget(self._left // _STEPS_OF_CONFLICT + 1)
        answer: bool | None = solver.solve_limited(assumptions=list(assumptions))
        self.spend(_num_steps(solver) - before)
        if answer is None:
            raise TooHardError
        return answer


def _num_steps(solver: Solver) -> int:
    found: dict[str, int] = solver.accum_stats()
    return _STEPS_OF_PROPAGATION * found["propagations"] + _STEPS_OF_CONFLICT * found["conflicts"]


class Clause(NamedTuple):
    """Whenever all variables of `when` hold, at least one of `then` does."""

    when: tuple[int, ...]
    then: frozenset[int]


class Formula(NamedTuple):
    """Clauses, and groups of which at most one variable holds; variable 1 is the root."""

    num_variables: int
    clauses: tuple[Clause, ...]
    groups: tuple[tuple[int, ...], ...]


def formula_of(rules: Rules) -> Formula:
    """Number the modules in document order from the root, 1, and translate the rules."""
    number = {module: index + 1 for module, index in rules.order.items()}
    clauses, groups = [], []
    for rule in rules.rules:
        if isinstance(rule, Implication):
            when = tuple(number[module] for module in rule.when)
            clauses.append(Clause(when, frozenset(number[module] for module in rule.then)))
        else:
            groups.append(tuple(number[module] for module in rule.members))
    return Formula(len(number), tuple(clauses), tuple(groups))


def literals(clause: Clause) -> list[int]:
    """Return a clause as the solver reads it."""
    return [*(-variable for variable in clause.when), *clause.then]


def at_most_one(group: Sequence[int], fresh: Iterator[int]) -> Iterator[list[int]]:
    """Yield clauses for "at most one of `group`", as many as the group has variables.

    Args:
        group: Variables. fresh: Where new variables come from; a large group takes one for each of its members: "this
        one or one before it".
    """
    if len(group) <= _PAIRWISE:
        yield from ([-one, -other] for one, other in combinations(group, 2))
        return
    before = None
    for variable in group:
        here = next(fresh)
        yield [-variable, here]
        if before is not None:
            yield [-before, here]
            yield [-before, -variable]
        before = here


@contextmanager
def solving(clauses: Iterable[list[int]]) -> Iterator[Solver]:
    """Open a solver on clauses; it prefers models in which few variables hold."""
    with SOLVER_LOCK, Solver(name="glucose4", bootstrap_with=clauses) as solver:
        yield solver
