"""Rules in numbers, and the solver that answers about them.

Comes in: clauses over variables, which count from 1. Goes out: answers of python-sat. This file knows no modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import NamedTuple

from pysat.solvers import Solver

from promptcache.language.rules import Implication, Rules
from promptcache.locks import new_rlock

SOLVER_LOCK = new_rlock()
"""python-sat keeps jump buffers and signal handlers for the whole process: one thread at a time."""

_PAIRWISE = 5


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
