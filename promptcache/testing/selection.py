"""Valid selections of a schema: the sets of module paths that keep all rules, with the modules that defaults add.

Up to 4,096 selections are listed, the smallest first. Beyond that, modules are drawn one after another and a solver
completes them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence, Set
from itertools import cycle, islice
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from promptcache.language import CheckedSchema, open_solver
from promptcache.language import list_selections as list_valid
from promptcache.testing.prompt_xml import Members, first_members, keep_rules, member_counts

MAX_LISTED = 4096
_MAX_WANTED = 8
_MAX_DRAWS = 4  # for each combination, as some come twice


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

    If all selections can be listed, the second is one of the nearest to the first: mostly they differ in one module.
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
    """Draw wanted modules one after another, and return the first selection that has as many of them as possible."""
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
    return list_valid(schema.rules, limit)


def sample_selections(schema: CheckedSchema, count: int, seed: int) -> tuple[frozenset[str], ...]:
    """Return at most `count` different valid selections at random, without Hypothesis: the same for the same seed.

    Where they cannot be listed, a few modules are drawn, and the solver adds what they need.
    """
    chance, listed = random.Random(seed), list_selections(schema)
    if listed is not None:
        return tuple(chance.sample(listed, min(count, len(listed))))
    found: dict[frozenset[str], None] = {}
    paths = tuple(schema.modules)
    with open_solver(schema.rules) as solver:
        for _ in range(count):
            present: list[str] = []
            absent: list[str] = []
            num_wanted = chance.randint(0, _MAX_WANTED)
            for number, path in enumerate(chance.sample(paths, len(paths))):
                if number < num_wanted and solver.is_possible([*present, path], absent):
                    present.append(path)
                elif solver.is_possible(present, [*absent, path]):
                    absent.append(path)
            found[solver.selection(present, absent) or frozenset()] = None
    return tuple(found)


class SelectionSample(NamedTuple):
    """What a prompt names: a valid selection of modules, and members of the collections in it, in order, by path."""

    modules: frozenset[str]
    members: tuple[tuple[str, tuple[str, ...]], ...] = ()


def sample_combinations(schema: CheckedSchema, count: int, seed: int) -> tuple[SelectionSample, ...]:
    """Return at most `count` different combinations at random, without Hypothesis: the same for the same seed.

    Of each collection among the modules members are drawn in random order: as many as it allows, but one at least and,
    if it allows that, `_MAX_WANTED` at most.
    """
    chance, selections = random.Random(seed), sample_selections(schema, count, seed)
    collections = {path: module.collection for path, module in schema.modules.items() if module.collection is not None}
    names = {path: tuple(each.members) for path, each in collections.items() if each.members}
    counts = {path: member_counts(collections[path], _MAX_WANTED) for path in names}
    found: dict[SelectionSample, None] = {}
    for modules in islice(cycle(selections), len(selections) if not names else _MAX_DRAWS * count):
        members: Members = {
            path: tuple(chance.sample(known, chance.randint(max(counts[path][0], 1), counts[path][1])))
            for path, known in names.items()
            if path in modules
        }
        if not keep_rules(schema, modules, members):
            members = first_members(schema, modules)
        found[SelectionSample(modules, tuple((path, tuple(each)) for path, each in members.items()))] = None
        if len(found) == count:
            break
    return tuple(found)


def can_be_completed(schema: CheckedSchema, modules: Set[str]) -> bool:
    """Whether some valid selection holds `modules`."""
    with open_solver(schema.rules) as solver:
        return solver.is_possible(modules)


@st.composite
def _walked(
    draw: DrawFn,
    schema: CheckedSchema,
    other_than: frozenset[str] | None = None,
    using: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Draw modules one by one, keep those that are possible together, and let the solver complete them."""
    wanted = draw(st.lists(st.sampled_from(tuple(schema.rules.order)), unique=True))
    with open_solver(schema.rules) as solver:
        if other_than is not None:
            solver.exclude(other_than)
        kept = list(using)
        for path in wanted:
            if solver.is_possible([*kept, path]):
                kept.append(path)
        return solver.selection(kept) or frozenset()
