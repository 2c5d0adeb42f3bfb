"""A covering has few prompts that show every pair of choices; small schemas get all their prompts."""

from collections.abc import Collection
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings

from promptcache.language import CheckedSchema, open_solver
from promptcache.testing import ByteTokenizer, all_prompts, covering
from promptcache.testing.cover import Choices, covering_selections, valid_tuples
from promptcache.testing.selection import list_selections
from promptcache.testing.subject import read_schema
from tests.conftest import law_examples
from tests.language.documents import checked
from tests.strategies import schemas
from tests.testing.samples import RICH, WIDE

SHIPPED = sorted((Path(__file__).parents[2] / "schemas").glob("*.xml"))


def shown_by(schema: CheckedSchema, modules: Collection[str]) -> Choices:
    """Return every choice of a selection."""
    return frozenset(place + 1 if path in modules else -place - 1 for path, place in schema.rules.order.items() if path)


@settings(max_examples=law_examples(0.25))
@given(schema=schemas())
def test_every_pair_is_covered(schema: CheckedSchema) -> None:
    """Each pair of choices that brute force finds in some selection is shown by a prompt of the covering."""
    listed = list_selections(schema) or []
    valid = {frozenset(pair) for modules in listed for pair in combinations(sorted(shown_by(schema, modules)), 2)}
    found = [shown_by(schema, modules) for modules in covering_selections(schema)]

    assert all(any(pair <= choices for choices in found) for pair in valid)
    assert all(frozenset(modules) in listed for modules in covering_selections(schema))


@pytest.mark.parametrize(
    ("source", "size", "most"),
    [*((file, 2, 10) for file in SHIPPED), (RICH, 2, 10), (WIDE, 2, 24), (RICH, 3, 40)],
    ids=lambda each: getattr(each, "stem", ""),
)
def test_coverings_are_small(source: str | Path, size: int, most: int) -> None:
    """Few prompts show every valid pair or triple: ten for shipped schemas, two dozen for three billion selections."""
    schema = read_schema(source)
    with open_solver(schema.rules) as solver:
        valid = list(valid_tuples(solver, len(schema.rules.order), size))

    found = [shown_by(schema, modules) for modules in covering_selections(schema, size)]

    assert all(any(each <= choices for choices in found) for each in valid)
    assert len(found) <= most


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
