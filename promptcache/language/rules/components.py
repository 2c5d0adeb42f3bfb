"""What is left of a formula once everything certain is settled, cut into parts that have nothing to do with each other.

Comes in: a formula. Goes out: a `Residual`, with the two ways of walking it that need no solver. This file knows no
modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import NamedTuple

from promptcache.language.rules.formula import Budget, Clause, Formula, at_most_one, literals, solving

_STEPS_OF_VARIABLE = 20
_STEPS_OF_CLAUSE = 4


class Residual(NamedTuple):
    """The clauses and groups over variables that are neither always nor never true.

    Attributes:
        always, never: The settled variables. component: For each other variable, the number of its component. members:
        For each component, its variables in order. open_clauses: For each component, its clauses without a condition:
        alternatives that are open whatever is assumed. forced: For each variable, the clauses that have it as a
        condition. answers: For each variable, the open clauses that it satisfies. group_of: For each variable, its
        group.
    """

    always: frozenset[int]
    never: frozenset[int]
    component: Mapping[int, int]
    members: Mapping[int, Sequence[int]]
    open_clauses: Mapping[int, Sequence[Clause]]
    forced: Mapping[int, Sequence[Clause]]
    answers: Mapping[int, Sequence[Clause]]
    group_of: Mapping[int, tuple[int, ...]]

    def follow(self, start: Iterable[int], budget: Budget) -> tuple[frozenset[int] | None, bool]:
        """Follow the implications from `start`.

        Returns:
            Everything reached, or None where that breaks a rule; and whether no alternative was left open on the way.
        """
        reached: set[int] = set()
        chosen: dict[int, int] = {}
        alternatives = []
        waiting = list(start)
        while waiting:
            variable = waiting.pop()
            if variable in reached:
                continue
            reached.add(variable)
            group = self.group_of.get(variable)
            if group is not None and chosen.setdefault(group[0], variable) != variable:
                return None, False
            clauses = self.forced.get(variable, ())
            budget.spend(_STEPS_OF_VARIABLE + _STEPS_OF_CLAUSE * len(clauses))
            for clause in clauses:
                if not reached.issuperset(clause.when) or not clause.then.isdisjoint(reached):
                    continue
                if not clause.then:
                    return None, False
                if len(clause.then) == 1:
                    waiting.extend(clause.then)
                else:
                    alternatives.append(clause)
        return frozenset(reached), all(not clause.then.isdisjoint(reached) for clause in alternatives)

    def cone(self, start: Iterable[int], budget: Budget) -> Sequence[int]:
        """Return everything that `start` could bring about, whichever alternatives are taken."""
        reached: set[int] = set()
        waiting = list(start)
        while waiting:
            variable = waiting.pop()
            if variable in reached:
                continue
            reached.add(variable)
            clauses = self.forced.get(variable, ())
            budget.spend(_STEPS_OF_VARIABLE + _STEPS_OF_CLAUSE * len(clauses))
            for clause in clauses:
                if reached.issuperset(clause.when):
                    waiting.extend(clause.then)
        return sorted(reached)

    def answered(self, reached: Iterable[int]) -> set[Clause]:
        """Return the open clauses that `reached` satisfies."""
        return {clause for variable in reached for clause in self.answers.get(variable, ())}

    def clauses_over(self, variables: Mapping[int, int]) -> Iterator[Clause]:
        """Yield the clauses that bind `variables` while all others are false."""
        seen: set[Clause] = set()
        components = {self.component[variable] for variable in variables}
        for clause in chain.from_iterable(self.open_clauses.get(component, ()) for component in components):
            yield Clause((), clause.then & variables.keys())
        for clause in chain.from_iterable(self.forced.get(variable, ()) for variable in variables):
            if clause not in seen and all(variable in variables for variable in clause.when):
                seen.add(clause)
                yield Clause(clause.when, clause.then & variables.keys())

    def groups_over(self, variables: Mapping[int, int]) -> Iterator[tuple[int, ...]]:
        """Yield the groups that bind `variables`, cut down to them."""
        groups = {group[0]: group for variable in variables if (group := self.group_of.get(variable))}
        for group in groups.values():
            yield tuple(variable for variable in group if variable in variables)


def reduce(formula: Formula) -> Residual | None:
    """Settle what unit propagation from the root settles; None if it finds a contradiction."""
    fresh = count(formula.num_variables + 1)
    clauses = [literals(clause) for clause in formula.clauses]
    for group in formula.groups:
        clauses += at_most_one(group, fresh)
    with solving(clauses) as solver:
        consistent, settled = solver.propagate(assumptions=[1])
    if not consistent:
        return None
    always = frozenset(literal for literal in settled if 0 < literal <= formula.num_variables) | {1}
    never = frozenset(-literal for literal in settled if -formula.num_variables <= literal < 0)
    left = {
        Clause(tuple(v for v in clause.when if v not in always), clause.then - never): None
        for clause in formula.clauses
        if clause.then.isdisjoint(always) and never.isdisjoint(clause.when)
    }
    groups = [tuple(v for v in group if v not in never and v not in always) for group in formula.groups]
    return _cut(formula.num_variables, always, never, list(left), [group for group in groups if len(group) > 1])


def _cut(
    num_variables: int,
    always: frozenset[int],
    never: frozenset[int],
    clauses: list[Clause],
    groups: list[tuple[int, ...]],
) -> Residual:
    component = _components(
        (v for v in range(1, num_variables + 1) if v not in always and v not in never),
        chain(((*clause.when, *clause.then) for clause in clauses), groups),
    )
    members: dict[int, list[int]] = {}
    for variable, number in component.items():
        members.setdefault(number, []).append(variable)
    open_clauses: dict[int, list[Clause]] = {}
    forced: dict[int, list[Clause]] = {}
    answers: dict[int, list[Clause]] = {}
    for clause in clauses:
        for variable in clause.when:
            forced.setdefault(variable, []).append(clause)
        if not clause.when:
            open_clauses.setdefault(component[min(clause.then)], []).append(clause)
            for variable in clause.then:
                answers.setdefault(variable, []).append(clause)
    group_of = {variable: group for group in groups for variable in group}
    return Residual(always, never, component, members, open_clauses, forced, answers, group_of)


def _components(variables: Iterable[int], links: Iterable[Sequence[int]]) -> dict[int, int]:
    """Return for each variable the least variable that it is linked to."""
    parent = {variable: variable for variable in variables}

    def root(variable: int) -> int:
        while parent[variable] != variable:
            parent[variable] = parent[parent[variable]]
            variable = parent[variable]
        return variable

    for first, *others in links:
        for other in others:
            one, two = sorted((root(first), root(other)))
            parent[two] = one
    return {variable: root(variable) for variable in parent}
