"""Random schemas: valid, small, and of every element and attribute."""

from __future__ import annotations

from hypothesis import example, given, settings

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


@settings(max_examples=law_examples())
@given(document=strategies.schema_documents())
@example(document='<schema name="s"><system>\n\u00a0</system></schema>').via("indentation with a no-break space")
def test_documents_are_valid_and_small(document: str) -> None:
    """Every schema checks, each of its modules can be used, and it has at most twelve modules and 250 positions."""
    schema = check_schema(parse_schema(document))

    assert {warning.code for warning in schema.warnings} <= WARNINGS_OF_DRAWN
    assert len(schema.modules) <= MAX_MODULES
    assert lay_out(schema, ByteTokenizer()).stop <= 250


def test_every_element_occurs() -> None:
    """Schemas use every element and attribute of the language, slots in every place of a run, and awkward text."""
    documents = strategies.schema_documents()

    found = occurring(documents, lambda text: schema_features(text, check_schema(parse_schema(text))), SCHEMA_FEATURES)

    assert found >= SCHEMA_FEATURES, SCHEMA_FEATURES - found


@settings(max_examples=law_examples(0.5))
@given(schema=strategies.exact_schemas())
def test_exact_schemas_have_one_selection(schema: CheckedSchema) -> None:
    """All modules of an exact schema are always there, cached, and see all that is guaranteed."""
    assert list_selections(schema) == (frozenset(schema.modules),)
    assert all(module.cache and module.context is not Context.OWN for module in schema.modules.values())
    assert not schema.scaffolds
