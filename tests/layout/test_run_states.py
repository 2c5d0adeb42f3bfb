"""Laws of run states: what each run may see."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.language import Placement
from promptcache.layout import StateKind, lay_out, run_states, scaffolds_in_use
from tests import strategies
from tests.conftest import law_examples
from tests.layout.samples import layout_of, read


@pytest.mark.law
@settings(max_examples=law_examples(0.25))
@given(schema=strategies.schemas(), codec=st.sampled_from(["full", "int8"]), tokenizer=strategies.TOKENIZERS)
def test_an_encoding_attends_to_all_tokens_of_the_states_that_its_state_sees(schema, codec, tokenizer):
    """The context of an encoding is the whole encodings of the states that are seen; one codec is used for all."""
    layout = lay_out(schema, tokenizer)
    states = run_states(layout, codec)

    for state in states:
        context = state.encoding.context
        assert state.encoding.codec == codec
        assert [part.encoding for part in context] == [states[other].encoding for other in state.sees]
        assert all(part.is_whole for part in context)
        if layout.placement is Placement.FIXED:
            assert all(part.shift == 0 for part in context)
        else:
            own = (*context, state.encoding.whole)
            assert [each.first for each in own] == [0, *accumulate(each.num_tokens for each in context)]


@pytest.mark.law
@settings(max_examples=law_examples(0.25))
@given(schema=strategies.schemas(), tokenizer=strategies.TOKENIZERS)
def test_no_state_is_made_twice(schema, tokenizer):
    """No two states of a run see the same at the same distances."""
    states = run_states(lay_out(schema, tokenizer))

    assert len({(state.run, state.encoding) for state in states}) == len(states)


def test_the_first_declared_scaffold_takes_its_members_as_a_whole():
    """A scaffold is used if an earlier one has taken none of its members, nor of what is guaranteed with them."""
    schema = read(
        '<schema name="s"><module name="a">a<module name="k" required="true">k</module></module><module name="b">b</module>'
        '<module name="c">c</module><scaffold name="f" modules="a/k b"/><scaffold name="g" modules="a c"/>'
        '<scaffold name="h" modules="b c"/></schema>'
    )

    assert scaffolds_in_use(schema.scaffolds, ("a", "a/k", "b", "c")) == {"a/k": "f", "b": "f"}


def test_equal_contexts_are_one_tuple():
    """Modules that see the same share their context, however many they are."""
    modules = "".join(f'<module name="m{index}">text</module>' for index in range(50))
    states = run_states(layout_of(f'<schema name="s">prefix{modules}</schema>'))

    plain = [state for state in states if state.kind is StateKind.PLAIN]

    assert len({id(state.sees) for state in plain[2:]}) == 1
    assert len({id(state.encoding.context) for state in plain[2:]}) == 1
