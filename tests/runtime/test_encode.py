"""What is computed together, and that it makes no difference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.kv import MemoryStore
from promptcache.language import CheckedSchema
from promptcache.layout import encodings, lay_out
from promptcache.runtime import encode as encode_module
from promptcache.runtime.encode import batches, chains, encode, missing_encodings
from promptcache.runtime.prepare import make_recipes
from promptcache.testing import strategies
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tests.conftest import law_examples

MODEL = tiny_model()


@given(schema=strategies.schemas(), window=st.none() | st.integers(1, 50))
@settings(max_examples=100)
def test_batches_hold_every_encoding_once_after_its_context(schema: CheckedSchema, window: int | None) -> None:
    """Each encoding is computed once, and its context before it or earlier in its own chain."""
    made = encodings(lay_out(schema, ByteTokenizer()))

    done: list[int] = []
    for batch in batches(chains(made), window):
        for chain in batch:
            assert set(chain.context) <= set(done)
            for position, link in enumerate(chain.links):
                assert link.context == (*chain.context, *(each.index for each in chain.links[:position]))
        done.extend(link.index for chain in batch for link in chain.links)

    assert sorted(done) == [each.index for each in made]


@given(data=st.data(), schema=strategies.schemas())
@settings(max_examples=100)
def test_missing_is_closed_over_contexts(data: st.DataObject, schema: CheckedSchema) -> None:
    """Whatever a wanted encoding attends to is held or computed too, and nothing else is."""
    made = encodings(lay_out(schema, ByteTokenizer()))
    indices = st.sets(st.sampled_from(range(len(made)))) if made else st.just(set())
    wanted, held = data.draw(indices), data.draw(indices)

    missing = {each.index for each in missing_encodings(made, wanted, held.__contains__)}

    assert wanted - held <= missing
    for index in missing:
        assert index not in held
        assert {*made[index].context} - held <= missing
        assert index in wanted or any(index in made[each].context for each in missing)


@pytest.mark.law
@given(schema=strategies.schemas())
@settings(max_examples=law_examples(0.2))
def test_together_or_alone_gives_the_same_kv(schema: CheckedSchema) -> None:
    """KV computed in chains, batches and chunks equals KV computed one encoding after another."""
    made = encodings(lay_out(schema, ByteTokenizer()))
    recipes = make_recipes(made, "model")
    together = encode(MODEL, made, recipes, made, MemoryStore(MODEL.shape), {})

    alone = {}
    for each in made:
        alone |= encode(MODEL, made, recipes, [each], MemoryStore(MODEL.shape), dict(alone))

    for key in together:
        assert torch.allclose(together[key].keys, alone[key].keys, atol=1e-11)
        assert torch.allclose(together[key].values, alone[key].values, atol=1e-11)


@given(schema=strategies.schemas())
@settings(max_examples=15)
def test_chunks_give_the_same_kv(schema: CheckedSchema) -> None:
    """A long run computed in several forward passes has the KV of one."""
    made = encodings(lay_out(schema, ByteTokenizer()))
    recipes = make_recipes(made, "model")
    whole = encode(MODEL, made, recipes, made, MemoryStore(MODEL.shape), {})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode_module, "CHUNK_TOKENS", 5)
        chunked = encode(MODEL, made, recipes, made, MemoryStore(MODEL.shape), {})

    assert all(torch.allclose(whole[key].keys, chunked[key].keys, atol=1e-11) for key in whole)
