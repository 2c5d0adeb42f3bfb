"""Count the valid combinations of a schema's modules, and list them if there are few.

A combination is the set of modules of a valid prompt. It includes union defaults and excludes the root.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

from promptcache.language.limits import MAX_STEPS
from promptcache.language.rules.rules import Rules
from promptcache.language.rules.solver import RuleSolver, TooHardError, limited_solver

MAX_COUNTED = 10_000
"""Number of combinations up to which they are counted and listed."""

_FEW = 100


class Count(NamedTuple):
    """Number of combinations; if it is not `exact`, there are more."""

    number: int
    exact: bool


@contextmanager
def open_solver(rules: Rules) -> Iterator[RuleSolver]:
    """Open a solver for the valid combinations of a schema. Each question has a limit of its own.

    Raises:
        TooHardError: a question takes more work than its limit allows.
    """
    with RuleSolver(rules.order) as solver:
        solver.add(rules.rules)
        solver.demand([""])
        yield solver


def count_combinations(rules: Rules, limit: int = MAX_COUNTED) -> Count:
    """Count the sets of modules that keep all rules, up to `limit`; a union default is one choice among others."""
    found = _find(rules, limit)
    return Count(found, exact=False) if isinstance(found, int) else Count(len(found), exact=True)


def list_selections(rules: Rules, limit: int = MAX_COUNTED) -> tuple[frozenset[str], ...] | None:
    """Return every valid combination, the smallest first, or None if there are more than `limit`."""
    found = _find(rules, limit)
    if isinstance(found, int):
        return None
    place = rules.order.__getitem__
    return tuple(sorted(found, key=lambda modules: (len(modules), sorted(map(place, modules), reverse=True))))


@limited_solver(MAX_STEPS)
def _find(rules: Rules, limit: int) -> list[frozenset[str]] | int:
    """Return all valid combinations, or a number that they exceed.

    Modules are decided in document order, and each rule is checked at its last module. When the beginnings of
    combinations have doubled, those that lead to no combination are removed. Each of the others leads to another one.
    """
    modules = [*rules.order]
    last: list[list[int]] = [[] for _ in modules]
    for number, rule in enumerate(rules.rules):
        last[max(rules.order[module] for module in rule.modules)].append(number)
    found, num_sure = [frozenset({""})], 0
    with open_solver(rules) as solver:
        try:
            for place, module in enumerate(modules):
                if module:
                    found = [more for each in found for more in (each, each | {module})]
                solver.spend(len(found) * (1 + len(last[place])))
                found = [each for each in found if not any(rules.broken_rule(number, each) for number in last[place])]
                if len(found) > min(limit, 2 * num_sure + _FEW):
                    open_rules = [number for numbers in last[place + 1 :] for number in numbers]
                    possible = _possible(found, frozenset(modules[1 : place + 1]), open_rules, rules, solver)
                    found = [*islice(possible, limit + 1)]
                    num_sure = len(found)
                    if num_sure > limit:
                        return limit
        except TooHardError:
            return max(num_sure - 1, 0)
    return [each - {""} for each in found]


def _possible(
    found: list[frozenset[str]], decided: frozenset[str], open_rules: list[int], rules: Rules, solver: RuleSolver
) -> Iterator[frozenset[str]]:
    """Yield the beginnings of combinations: the modules that are present of those `decided`.

    Most go on as another one does, which only the rules of both parts can forbid. For the others the solver is asked.
    """
    of_both = [number for number in open_rules if not decided.isdisjoint(rules.rules[number].modules)]
    ends: list[frozenset[str]] = []
    for each in found:
        solver.spend(1 + len(of_both))
        if not any(not any(rules.broken_rule(number, each | end) for number in of_both) for end in ends):
            selection = solver.selection(each, decided - each)
            if selection is None:
                continue
            ends.append(selection - decided)
        yield each
