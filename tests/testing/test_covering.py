"""A covering has few prompts that show every pair of choices; small schemas get all their prompts."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings

from promptcache.language import CheckedSchema, open_solver
from promptcache.testing import ByteTokenizer, all_prompts, covering
from promptcache.testing.cover import Choices, covering_selections, valid_tuples
from promptcache.testing.selection import list_selections
from tests.conftest import law_examples
from tests.strategies import schemas
from tests.testing.samples import RICH, WIDE, checked

SHIPPED = sorted((Path(__file__).parents[2] / "schemas").glob("*.xml"))


def shown_by(schema: CheckedSchema, modules: Collection[str]) -> Choices:
    """Return every choice of a selection."""
    return frozenset(place + 1 if path in modules else -place - 1 for path, place in schema.rules.order.items() if path)


def valid_pairs(schema: CheckedSchema) -> list[Choices]:
    """Return every pair of choices that some valid selection shows."""
    with open_solver(schema.rules) as solver:
        return list(valid_tuples(solver, len(schema.rules.order), 2))


def largest_incompatible(schema: CheckedSchema) -> int:
    """Return the size of a large set of valid pairs of which no two fit into one selection: no covering is smaller.

    It is collected greedily from every start; pairs are compared by the selections that show them, the rarest first.

    Raises:
        ValueError: there are too many selections to list.
    """
    selections = list_selections(schema)
    if selections is None:
        raise ValueError(f"schema {schema.name!r} has too many selections to list")
    listed = [shown_by(schema, modules) for modules in selections]
    pairs = valid_pairs(schema)
    masks = [sum(1 << place for place, choices in enumerate(listed) if pair <= choices) for pair in pairs]
    masks.sort(key=int.bit_count)
    best = 0
    for start in masks:
        taken, size = start, 1
        for mask in masks:
            if not mask & taken:
                taken, size = taken | mask, size + 1
        best = max(best, size)
    return best


@settings(max_examples=law_examples(0.25))
@given(schema=schemas())
def test_every_pair_is_covered(schema: CheckedSchema) -> None:
    """Each pair of choices that brute force finds in some selection is shown by a prompt of the covering."""
    listed = list_selections(schema) or []
    valid = {frozenset(pair) for modules in listed for pair in combinations(sorted(shown_by(schema, modules)), 2)}
    found = [shown_by(schema, modules) for modules in covering_selections(schema)]

    assert all(any(pair <= choices for choices in found) for pair in valid)
    assert all(frozenset(modules) in listed for modules in covering_selections(schema))


@pytest.mark.parametrize("source", [*SHIPPED, RICH], ids=[*(file.stem for file in SHIPPED), "rich"])
def test_coverings_are_small(source: str | Path) -> None:
    """A covering is at most twice as large as the largest set of incompatible pairs found, and misses no valid pair."""
    schema = next(iter(covering(source))).selection.schema

    found = [shown_by(schema, modules) for modules in covering_selections(schema)]

    assert all(any(pair <= choices for choices in found) for pair in valid_pairs(schema))
    assert len(found) <= 2 * largest_incompatible(schema)


def test_coverings_stay_small_where_nothing_is_listed() -> None:
    """More than three billion selections, two thousand valid pairs and more: two dozen prompts show them all."""
    schema = checked(WIDE)

    found = [shown_by(schema, modules) for modules in covering_selections(schema)]

    assert all(any(pair <= choices for choices in found) for pair in valid_pairs(schema))
    assert len(found) <= 24


def test_covering_shows_triples() -> None:
    """With t=3, every valid triple of choices occurs."""
    schema = checked(RICH)
    with open_solver(schema.rules) as solver:
        triples = list(valid_tuples(solver, len(schema.rules.order), 3))

    found = [shown_by(schema, modules) for modules in covering_selections(schema, 3)]

    assert all(any(triple <= choices for choices in found) for triple in triples)


def test_all_prompts_are_all() -> None:
    """There is one prompt for every valid selection, the smallest first."""
    cases = list(all_prompts(RICH, tokenizer=ByteTokenizer()))

    assert [frozenset(case.selection.modules) for case in cases] == list(list_selections(checked(RICH)) or [])


def test_too_many_prompts_are_refused() -> None:
    """Beyond the limit nothing is listed, and the error says what to use instead."""
    with pytest.raises(ValueError, match="more than 10 valid selections; use covering"):
        all_prompts(RICH, limit=10)


def test_a_schema_without_modules_has_one_prompt() -> None:
    """A schema without choices is covered by its only prompt."""
    assert len(list(covering('<schema name="s"/>', tokenizer=ByteTokenizer()))) == 1
