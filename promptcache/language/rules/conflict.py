"""The smallest set of rules, and of modules somebody wants, that cannot all be kept.

Comes in: rules and modules. Goes out: a `Conflict`. Nesting is no part of it: that a module brings its ancestors needs
no explanation. This file puts nothing into words.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from pysat.examples.hitman import Hitman
from pysat.solvers import Solver

from promptcache.language.rules.formula import Budget, TooHardError, at_most_one, solving
from promptcache.language.rules.rules import Declaration, Exclusive, Implication, Rule, Rules
from promptcache.language.syntax.names import ancestors

_MAX_SOFT = 100
_MAX_ROUNDS = 50
_MAX_STEPS = 10_000_000


class Conflict(NamedTuple):
    """Modules that cannot be present together under `rules`; leaving out any one of all these ends the conflict."""

    modules: tuple[str, ...]
    rules: tuple[Rule, ...]


def smallest_conflict(rules: Rules, wanted: Sequence[str], given: Sequence[str] = ()) -> Conflict | None:
    """Find a smallest conflict.

    Args:
        rules: All rules of the schema.
        wanted: Modules that may be part of the conflict.
        given: Modules that are present without question.

    Returns:
        A conflict of which no part can be left out; where few rules and modules come into question, no other
        conflict is smaller. Where that takes too many steps, the smallest that was found. None if all can be present
        together, or if it takes too many steps to find out.
    """
    cone = _cone(rules, (*wanted, *given))
    concerned = list(_concerned(rules, cone))
    number = {module: index + 1 for index, module in enumerate(cone)}
    fresh = count(len(cone) + 1)
    soft: dict[int, str | tuple[Rule, ...]] = {}
    clauses = [[number[module]] for module in ("", *given)]
    clauses += [[-number[module], number[parent]] for module in cone for parent in list(ancestors(module))[:1]]
    things: list[str | tuple[Rule, ...]] = [*dict.fromkeys(wanted), *_by_declaration(concerned)]
    for thing in things:
        selector = next(fresh)
        soft[selector] = thing
        clauses += [[*clause, -selector] for clause in _clauses(thing, number, fresh)]
    budget = Budget(_MAX_STEPS)
    with solving(clauses) as solver:
        try:
            if budget.solve(solver, list(soft)):
                return None
        except TooHardError:
            return None
        smallest = solver.get_core() or []
        with suppress(TooHardError):
            for smaller in _shrink(solver, smallest, budget):
                smallest = smaller
            if len(soft) <= _MAX_SOFT:
                smallest = _smaller(solver, list(soft), smallest, budget)
    found = [soft[selector] for selector in sorted(smallest)]
    return Conflict(
        tuple(thing for thing in found if isinstance(thing, str)),
        tuple(thing[0] for thing in found if not isinstance(thing, str)),
    )


def possible_with(rules: Rules, given: Sequence[str], options: Iterable[str]) -> frozenset[str]:
    """Return those of `options` each of which can be present together with all of `given`.

    What it takes too many steps to find out is left out.
    """
    options = list(options)
    cone = _cone(rules, (*given, *options))
    number = {module: index + 1 for index, module in enumerate(cone)}
    fresh = count(len(cone) + 1)
    clauses = [[number[module]] for module in ("", *given)]
    clauses += [[-number[module], number[parent]] for module in cone for parent in list(ancestors(module))[:1]]
    clauses += _clauses(tuple(_concerned(rules, cone)), number, fresh)
    found: set[str] = set()
    budget = Budget(_MAX_STEPS)
    with solving(clauses) as solver, suppress(TooHardError):
        found.update(option for option in options if budget.solve(solver, [number[option]]))
    return frozenset(found)


def _cone(rules: Rules, start: Iterable[str]) -> list[str]:
    """Return all modules that could come into question, "" among them, in document order."""
    reached: set[str] = set()
    waiting = ["", *start]
    while waiting:
        module = waiting.pop()
        if module in reached:
            continue
        reached.add(module)
        waiting.extend(ancestors(module))
        for rule in (*rules.triggers.get(module, ()), *rules.clauses.get(module, ())):
            waiting.extend(rule.then)
    return sorted(reached, key=rules.order.__getitem__)


def _concerned(rules: Rules, cone: list[str]) -> Iterator[Rule]:
    inside = set(cone)
    for module in cone:
        found = (*rules.triggers.get(module, ()), *rules.clauses.get(module, ()))
        yield from (rule for rule in found if inside.issuperset(rule.when))
        union = rules.union_of.get(module)
        if union is not None and next(member for member in union.members if member in inside) == module:
            yield union


def _by_declaration(rules: Iterable[Rule]) -> Iterator[tuple[Rule, ...]]:
    """Yield what is kept or left out together: the clauses of a declared rule, and every other rule alone."""
    declared: dict[Declaration, list[Rule]] = {}
    for rule in rules:
        if isinstance(rule, Implication) and rule.declared is not None:
            declared.setdefault(rule.declared, []).append(rule)
        else:
            yield (rule,)
    yield from map(tuple, declared.values())


def _clauses(thing: str | tuple[Rule, ...], number: dict[str, int], fresh: Iterator[int]) -> Iterator[list[int]]:
    if isinstance(thing, str):
        yield [number[thing]]
        return
    for rule in thing:
        if isinstance(rule, Exclusive):
            yield from at_most_one([number[module] for module in rule.members if module in number], fresh)
        else:
            yield [*(-number[module] for module in rule.when), *(number[module] for module in rule.then)]


def _shrink(solver: Solver, core: Sequence[int], budget: Budget) -> Iterator[list[int]]:
    """Leave out one after another whatever is not needed for the conflict, and yield what is left."""
    kept = sorted(core)
    for selector in sorted(core, reverse=True):
        rest = [other for other in kept if other != selector]
        if selector in kept and not budget.solve(solver, rest):
            refined = set(solver.get_core() or [])
            kept = [other for other in rest if other in refined]
            yield kept


def _smaller(solver: Solver, soft: Sequence[int], known: list[int], budget: Budget) -> list[int]:
    """Look for a conflict smaller than `known`.

    Every conflict meets every set whose absence ends all conflicts. So the smallest set that meets all of those found
    so far is either a conflict, hence a smallest one, or leads to another set to be met.
    """
    with Hitman(solver="g4", htype="sorted") as hitman:
        for _ in range(_MAX_ROUNDS):
            candidate: list[int] = hitman.get() or []
            if len(candidate) >= len(known):
                return known
            if not budget.solve(solver, candidate):
                return candidate
            hitman.hit(_correction(solver, soft, candidate, budget))
    return known


def _correction(solver: Solver, soft: Sequence[int], candidate: list[int], budget: Budget) -> list[int]:
    """Return what must be left out so that the rest, `candidate` among it, is no conflict; as little as possible."""
    kept = list(candidate)
    for selector in soft:
        if selector not in candidate and budget.solve(solver, [*kept, selector]):
            kept.append(selector)
    return [selector for selector in soft if selector not in set(kept)]
