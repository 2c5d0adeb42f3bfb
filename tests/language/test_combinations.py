"""Prompts for drawn combinations of modules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.language import CheckedSchema, resolve_prompt
from tests import strategies
from tests.conftest import law_examples
from tests.prompt_for import prompt_for


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
