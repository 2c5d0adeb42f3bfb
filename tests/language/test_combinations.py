"""Tests of valid combinations against an exhaustive list."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from promptcache.language import CheckedSchema, Combinations, check_schema, parse_schema, resolve_prompt
from promptcache.language.rules import combinations
from promptcache.testing.selection import list_selections
from tests import strategies
from tests.conftest import law_examples
from tests.prompt_for import prompt_for


def every(schema: CheckedSchema) -> set[frozenset[str]]:
    """Return all valid selections of a small schema."""
    listed = list_selections(schema)
    assume(listed is not None)
    assert listed is not None
    return set(listed)


@pytest.mark.law
@settings(max_examples=law_examples(0.5))
@given(data=st.data(), schema=strategies.schemas())
def test_extremes_are_the_extremes_of_all(data: Any, schema: CheckedSchema) -> None:
    """The least and the greatest combination have the extreme weights of the complete list."""
    weights = {path: data.draw(st.integers(0, 9)) for path in schema.modules}
    totals = [sum(weights[path] for path in each) for each in every(schema)]
    asked = Combinations(schema.rules)

    for extreme, total in ((asked.least(weights), min(totals)), (asked.greatest(weights), max(totals))):
        assert extreme.exact
        assert extreme.weight == sum(weights[path] for path in extreme.modules) == total
        assert extreme.modules in every(schema)


@pytest.mark.law
@settings(max_examples=law_examples(0.5))
@given(data=st.data(), schema=strategies.schemas())
def test_example_prompt_selects_its_combination(data: Any, schema: CheckedSchema) -> None:
    """A prompt for a combination is valid and selects exactly this combination."""
    modules = data.draw(strategies.selections(schema))
    required = {
        (path, name): parameter.default or "x"
        for path, found in schema.parameters.items()
        for name, parameter in found.items()
        if parameter.required
    }

    assert frozenset(resolve_prompt(prompt_for(schema, modules, required), schema).modules) == modules


def test_extremes_of_many_combinations_say_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """If combinations are not listed, the result is valid, and `exact` only if that is certain."""
    monkeypatch.setattr(combinations, "list_selections", lambda _: None)
    schema = check_schema(
        parse_schema(
            '<schema name="s"><module name="a" excludes="b">a</module><module name="b">b</module>'
            '<module name="c" required="true">c</module></schema>'
        )
    )

    assert Combinations(schema.rules).greatest({"a": 2, "b": 3, "c": 1}) == (frozenset("bc"), 4, False)
    assert Combinations(schema.rules).least({"a": 2, "b": 3, "c": 1}) == (frozenset("c"), 1, True)
