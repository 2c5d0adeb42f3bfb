"""The laws of docs/architecture.md over random schemas and prompts, in float64."""

from __future__ import annotations

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from promptcache.language import CheckedSchema
from promptcache.layout import Level
from promptcache.rows.coalesce import Pool
from promptcache.testing.byte_tokenizer import ByteTokenizer
from tests import strategies
from tests.conftest import law_examples, law_pairs
from tests.engine.test_previous import SCHEMAS as SEEING_PREVIOUS
from tests.laws.engine_laws import (
    ENGINE_LAWS,
    cached_is_reference,
    exact_is_models_own,
    exact_is_plain,
    history_changes_nothing,
)
from tests.laws.laws import Law
from tests.laws.service import default_model, serve
from tests.strategies.collections import collection_schemas

pytestmark = pytest.mark.law


KINDS = {
    "any": (strategies.schemas(), 0.75),
    "coalesced": (strategies.schemas(), 0.25),
    "collections": (collection_schemas(), 0.25),
    "previous": (SEEING_PREVIOUS, 0.25),
}
"""Random schemas, and the share of all pairs that is drawn of them."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("law", ENGINE_LAWS, ids=lambda law: law.name)
def test_laws_hold_for_random_schemas(law: Law, kind: str) -> None:
    """Every law of one prompt holds for random schemas and prompts, also if some or all segments are coalesced."""
    schemas, share = KINDS[kind]

    @given(data=st.data(), schema=schemas, tokenizer=strategies.TOKENIZERS, small_tokens=st.sampled_from([8, 64]))
    @settings(max_examples=law_pairs(share))
    def holds(data: st.DataObject, schema: CheckedSchema, tokenizer: ByteTokenizer, small_tokens: int) -> None:
        selection = data.draw(strategies.prompts(schema))
        pool = Pool(default_model(), small_tokens=small_tokens) if kind == "coalesced" else None
        service = serve(schema, pool=pool, tokenizer=tokenizer)
        note(f"level: {service.plan(selection).level}")
        law.check(service, selection)

    holds()


@given(data=st.data(), schema=strategies.exact_schemas(), tokenizer=strategies.TOKENIZERS)
@settings(max_examples=law_examples(0.25))
def test_all_required_schemas_are_exact(data: st.DataObject, schema: CheckedSchema, tokenizer: ByteTokenizer) -> None:
    """A prompt with every module and every slot at its filler is exact and equals plain causal prefill."""
    selection = data.draw(strategies.exact_prompts(schema))
    service = serve(schema, tokenizer=tokenizer)

    assert service.plan(selection).level is Level.EXACT
    cached_is_reference(service, selection)
    exact_is_plain(service, selection)
    exact_is_models_own(service, selection)


@given(data=st.data(), schema=strategies.schemas(), tokenizer=strategies.TOKENIZERS)
@settings(max_examples=law_examples(0.15))
def test_order_of_requests_does_not_matter(
    data: st.DataObject, schema: CheckedSchema, tokenizer: ByteTokenizer
) -> None:
    """Requests on one store get the answers that they get on stores of their own."""
    selections = data.draw(st.lists(strategies.prompts(schema), min_size=2, max_size=4))

    history_changes_nothing(serve(schema, tokenizer=tokenizer), selections)
