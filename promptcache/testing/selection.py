"""Valid selections of a schema: the sets of module paths that keep all rules, with the modules that defaults add.

Up to 4,096 selections are listed, the smallest first. Beyond that, modules are drawn one after another and a solver
completes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from contextlib import AbstractContextManager
from itertools import count

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from pysat.solvers import Solver

from promptcache.language.checked import CheckedSchema
from promptcache.language.rules.formula import at_most_one, formula_of, literals, solving
from promptcache.language.rules.rules import Exclusive, Rules

MAX_LISTED = 4096


def selections_with(schema: CheckedSchema, modules: frozenset[str]) -> SearchStrategy[frozenset[str]]:
    """Draw valid selections that hold `modules`.

    Some modules are wanted, and the smallest selection that has them is taken. So a selection shrinks module by module.

    Raises:
        ValueError: there is none.
    """
    unknown = modules - schema.modules.keys()
    if unknown or (modules and not can_be_completed(schema, modules)):
        raise ValueError(f"no valid prompt of schema {schema.name!r} uses {', '.join(sorted(unknown or modules))}")
    listed = list_selections(schema)
    if listed is None:
        return _walked(schema, using=modules)
    return _smallest_of([selection for selection in listed if modules <= selection])


def distinct_selections(schema: CheckedSchema) -> SearchStrategy[tuple[frozenset[str], frozenset[str]]]:
    """Draw two valid selections: different ones, unless there is only one.

    Where all can be listed, no other is nearer to the first than the second: mostly they differ in one module.
    """
    listed = list_selections(schema)
    if listed is None:
        return _walked(schema).flatmap(lambda first: st.tuples(st.just(first), _walked(schema, other_than=first)))

    def near(number: int, step: int) -> tuple[frozenset[str], frozenset[str]]:
        first = listed[number]
        distances = [len(first ^ other) for other in listed]
        least = min((distance for distance in distances if distance), default=0)
        nearest = [other for other, distance in zip(listed, distances, strict=True) if distance == least]
        return first, nearest[step % len(nearest)]

    return st.builds(near, st.integers(0, len(listed) - 1), st.integers(0, len(listed) - 1))


def _smallest_of(listed: Sequence[frozenset[str]]) -> SearchStrategy[frozenset[str]]:
    """Draw modules that are wanted, one after another, and return the first selection that has all that it can."""
    having: dict[str, int] = {}
    for number, selection in enumerate(listed):
        for path in selection:
            having[path] = having.get(path, 0) | 1 << number
    by_size = sorted(having, key=lambda path: having[path] & -having[path])
    if not by_size:
        return st.just(listed[0])

    def smallest(wanted: Sequence[str]) -> frozenset[str]:
        left = (1 << len(listed)) - 1
        for path in wanted:
            left = left & having[path] or left
        return listed[(left & -left).bit_length() - 1]

    return st.lists(st.sampled_from(by_size), unique=True, max_size=len(by_size)).map(smallest)


def list_selections(schema: CheckedSchema, limit: int = MAX_LISTED) -> Sequence[frozenset[str]] | None:
    """Return every valid selection, the smallest first, or None where there are more than `limit`."""
    masks = [1]
    conditions = _by_last_module(schema.rules)
    for place in range(1, len(schema.rules.order)):
        masks = [
            mask
            for without in masks
            for mask in (without, without | 1 << place)
            if all(mask & when != when or mask & then for when, then in conditions[place])
        ]
        if len(masks) > 4 * limit:  # some of them may still turn out to lead nowhere
            return None
    if len(masks) > limit:
        return None
    masks.sort(key=lambda mask: (mask.bit_count(), mask))
    paths = [(1 << place, path) for path, place in schema.rules.order.items() if path]
    return [frozenset(path for bit, path in paths if mask & bit) for mask in masks]


def can_be_completed(schema: CheckedSchema, modules: Set[str]) -> bool:
    """Whether some valid selection holds `modules`."""
    with solver_of(schema) as solver:
        return bool(solver.solve(assumptions=[1 + schema.rules.order[path] for path in modules]))


def smallest_with(schema: CheckedSchema, modules: Set[str]) -> frozenset[str] | None:
    """Return a valid selection of few modules that holds `modules`, or None if there is none."""
    listed = list_selections(schema)
    if listed is not None:
        return next((selection for selection in listed if modules <= selection), None)
    order = schema.rules.order
    with solver_of(schema) as solver:
        if not solver.solve(assumptions=[1 + order[path] for path in modules]):
            return None
        present = set(solver.get_model())
    return frozenset(path for path, place in order.items() if path and place + 1 in present)


def _by_last_module(rules: Rules) -> list[list[tuple[int, int]]]:
    """Return the rules as masks (if all of the first, then one of the second), by where they can be judged."""
    conditions: list[list[tuple[int, int]]] = [[] for _ in rules.order]
    for when, then in _implications(rules):
        last = max(rules.order[path] for path in (*when, *then))
        conditions[last].append((_mask(rules, when), _mask(rules, then)))
    return conditions


def _implications(rules: Rules) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    for rule in rules.rules:
        if isinstance(rule, Exclusive):
            for number, member in enumerate(rule.members):
                yield from (((member, other), ()) for other in rule.members[:number])
        else:
            yield rule.when, tuple(rule.then)


def _mask(rules: Rules, paths: Sequence[str]) -> int:
    return sum({1 << rules.order[path] for path in paths})


@st.composite
def _walked(
    draw: DrawFn,
    schema: CheckedSchema,
    other_than: frozenset[str] | None = None,
    using: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Want modules one after another; keep what can be had together, and add the little that it needs."""
    number = {path: 1 + place for path, place in schema.rules.order.items()}
    wanted = draw(st.lists(st.sampled_from(tuple(number)), max_size=8, unique=True))
    with solver_of(schema) as solver:
        if other_than is not None:
            solver.add_clause([-number[path] if path in other_than else number[path] for path in number if path])
        kept = [number[path] for path in using]
        for path in wanted:
            if solver.solve(assumptions=[*kept, number[path]]):
                kept.append(number[path])
        solver.solve(assumptions=kept)
        present = {variable for variable in solver.get_model() if variable > 0}
    return frozenset(path for path, variable in number.items() if path and variable in present)


def solver_of(schema: CheckedSchema) -> AbstractContextManager[Solver]:
    """Return a solver of a schema's rules; the variable of a module is its place in document order, the root's is 1."""
    formula = formula_of(schema.rules)
    fresh = count(formula.num_variables + 1)
    groups = (clause for group in formula.groups for clause in at_most_one(group, fresh))
    return solving([[1], *map(literals, formula.clauses), *groups])
