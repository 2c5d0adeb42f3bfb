"""The laws of docs/architecture.md over random schemas and prompts, in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st

from promptcache.language import CheckedSchema
from promptcache.language.checked import CheckedItem, CheckedModule, CheckedTurn, CheckedUnion, FinalText
from promptcache.layout import Level
from promptcache.runtime.reference import plain_logits, reference_logits, reference_tokens
from promptcache.testing import strategies
from tests.conftest import law_examples
from tests.engine.laws import TOLERANCE, distance, model, serve

pytestmark = pytest.mark.law


@given(data=st.data(), schema=strategies.schemas())
@settings(max_examples=law_examples())
def test_cached_logits_are_the_reference(data: st.DataObject, schema: CheckedSchema) -> None:
    """Linked KV gives the logits of one forward pass under an explicit mask."""
    selection = data.draw(strategies.prompts(schema))
    service = serve(schema)

    cached = service.logits(selection)

    assert distance(cached, reference_logits(service.plan(selection), model())) < TOLERANCE


@given(data=st.data(), schema=strategies.schemas())
@settings(max_examples=law_examples())
def test_exact_requests_equal_plain_prefill(data: st.DataObject, schema: CheckedSchema) -> None:
    """Whatever is called exact equals one causal forward pass over the same tokens at the same positions."""
    selection = data.draw(strategies.prompts(schema))
    service = serve(schema)
    plan = service.plan(selection)
    note(f"level: {plan.level}")

    far = distance(service.logits(selection), plain_logits(plan, model()))

    assert plan.level is not Level.EXACT or far < TOLERANCE


@given(data=st.data(), schema=strategies.exact_schemas())
@settings(max_examples=law_examples(0.25))
def test_all_required_schemas_are_exact(data: st.DataObject, schema: CheckedSchema) -> None:
    """All required, all cached, no union, every slot at its filler: exact, and equal to plain causal prefill."""
    selection = data.draw(strategies.exact_prompts(schema))
    service = serve(schema)
    plan = service.plan(selection)

    cached = service.logits(selection)

    assert plan.level is Level.EXACT
    assert distance(cached, plain_logits(plan, model())) < TOLERANCE
    tokens = sorted(reference_tokens(plan), key=lambda token: token.position)
    if [token.position for token in tokens] == list(range(len(tokens))):
        with torch.no_grad():
            own = model().hf(torch.tensor([[token.token_id for token in tokens]])).logits[0]
        assert distance(cached, own[-len(cached) :]) < TOLERANCE


@given(data=st.data(), schema=strategies.schemas())
@settings(max_examples=law_examples(0.5))
def test_unselected_text_changes_nothing(data: st.DataObject, schema: CheckedSchema) -> None:
    """The text of modules that a prompt does not select never changes its output."""
    selection = data.draw(strategies.prompts(schema))
    other = replace(schema, children=_masked(schema.children, frozenset(selection.modules)))

    before = serve(schema).logits(selection)
    after = serve(other).logits(replace(selection, schema=other))

    assert distance(after, before) < TOLERANCE


@given(data=st.data(), schema=strategies.schemas())
@settings(max_examples=law_examples(0.5))
def test_positions_of_present_tokens_are_disjoint(data: st.DataObject, schema: CheckedSchema) -> None:
    """No two tokens that a request uses stand at the same position."""
    plan = serve(schema).plan(data.draw(strategies.prompts(schema)))

    positions = [token.position for token in reference_tokens(plan) if token.in_use]

    assert len(set(positions)) == len(positions)


def _masked(items: tuple[CheckedItem, ...], kept: frozenset[str], own: bool = True) -> tuple[CheckedItem, ...]:
    """Replace the text of every module outside `kept` by other text of as many tokens."""
    masked: list[CheckedItem] = []
    for item in items:
        if isinstance(item, FinalText) and not own:
            masked.append(replace(item, text="~" * len(item.text.encode())))
        elif isinstance(item, CheckedTurn):
            masked.append(replace(item, children=_masked(item.children, kept, own)))
        elif isinstance(item, CheckedModule):
            masked.append(replace(item, children=_masked(item.children, kept, item.path in kept)))
        elif isinstance(item, CheckedUnion):
            members = _masked(item.members, kept, own)
            masked.append(replace(item, members=tuple(each for each in members if isinstance(each, CheckedModule))))
        else:
            masked.append(item)
    return tuple(masked)
