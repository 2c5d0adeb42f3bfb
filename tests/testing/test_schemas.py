"""Random schemas: valid, small, of every element, and simplest when they shrink."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from promptcache.language import CheckedSchema, Context, check_schema, parse_schema
from promptcache.layout import lay_out
from promptcache.testing import ByteTokenizer
from promptcache.testing.selection import list_selections
from tests import strategies
from tests.conftest import law_examples
from tests.strategies.schema_faults import WARNINGS_OF_DRAWN
from tests.strategies.schema_xml import MAX_MODULES
from tests.testing.features import SCHEMA_FEATURES, schema_features
from tests.testing.occurring import occurring

pytestmark = pytest.mark.long

SEARCH = settings(max_examples=2000, derandomize=True, database=None, phases=[Phase.generate, Phase.shrink])
WITHOUT = {
    "scaffolds": {"scaffold"},
    "uncached": {"uncached"},
    "unions": {"union"},
    "turns": {"system", "user", "assistant"},
    "parameters": {"bare slot", "slot with default", "slot with placeholder", "slot with both"},
    "rules": {"requires", "excludes", "after", "rules require", "rules exclude", "rules choose", "rules assert"},
}


@settings(max_examples=law_examples())
@given(document=strategies.schema_documents())
def test_documents_are_valid(document: str) -> None:
    """Every schema document parses and checks, and each of its modules can be used; parts of it may have no effect."""
    assert {warning.code for warning in check_schema(parse_schema(document)).warnings} <= WARNINGS_OF_DRAWN


@settings(max_examples=law_examples())
@given(schema=strategies.schemas())
def test_schemas_are_small(schema: CheckedSchema) -> None:
    """A schema has at most twelve modules and 250 positions, and no filler is longer than its slot."""
    assert len(schema.modules) <= MAX_MODULES
    assert lay_out(schema, ByteTokenizer()).stop <= 250


def test_every_element_occurs() -> None:
    """Schemas use every element and option of the language, slots in every place of a run, and awkward text."""
    documents = strategies.schema_documents()

    found = occurring(documents, lambda text: schema_features(text, check_schema(parse_schema(text))), SCHEMA_FEATURES)

    assert found == SCHEMA_FEATURES


@pytest.mark.parametrize("option", WITHOUT)
@settings(max_examples=law_examples(0.2))
@given(data=st.data())
def test_options_leave_elements_out(option: str, data: st.DataObject) -> None:
    """A feature that an option switches off does not occur."""
    document = data.draw(strategies.schema_documents(**{option: False}))

    assert WITHOUT[option].isdisjoint(schema_features(document, check_schema(parse_schema(document))))


@settings(max_examples=law_examples(0.5))
@given(schema=strategies.exact_schemas())
def test_exact_schemas_have_one_selection(schema: CheckedSchema) -> None:
    """All modules of an exact schema are always there, cached, and see all that is guaranteed."""
    assert list_selections(schema) == (frozenset(schema.modules),)
    assert all(module.cache and module.context is not Context.OWN for module in schema.modules.values())
    assert not schema.scaffolds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wanted", "smallest"),
    [
        (lambda document: True, '<schema name="s"/>'),
        (lambda document: "<union" in document, '<schema name="s"><union><module name="a"/></union></schema>'),
        (
            lambda document: "<scaffold" in document,
            '<schema name="s"><module name="a"/><module name="a2"/><scaffold modules="a a2"/></schema>',
        ),
        (
            lambda document: "requires" in document,
            '<schema name="s"><module name="a" requires="a2"/><module name="a2"/></schema>',
        ),
        (
            lambda document: "parameter" in document and "<user" in document,
            '<schema name="s"><parameter name="p" length="1"/><user/></schema>',
        ),
    ],
    ids=["anything", "union", "scaffold", "requires", "slot and turn"],
)
def test_schemas_shrink_to_the_smallest(wanted: Callable[[str], bool], smallest: str) -> None:
    """The schema that is reported for an element holds that element and nothing else."""
    assert find(strategies.schema_documents(), wanted, settings=SEARCH) == smallest
