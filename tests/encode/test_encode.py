"""Encoding in chains, batches and chunks, compared with one encoding after another."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.encode import encode as encode_module
from promptcache.encode.encode import batches, chains, missing_encodings, num_tokens_of
from promptcache.encode.executor import Executor
from promptcache.kv import KV, Store
from promptcache.language import CheckedSchema
from promptcache.layout import Encoding
from promptcache.planning import serve_schema
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tests import strategies
from tests.conftest import law_examples

MODEL = tiny_model()


@given(schema=strategies.schemas(), limit=st.integers(1, 200), tokenizer=strategies.TOKENIZERS)
@settings(max_examples=100)
def test_batches_hold_every_encoding_once_after_its_context(
    schema: CheckedSchema, limit: int, tokenizer: ByteTokenizer
) -> None:
    """Each encoding is computed once, after its context or later in the same chain."""
    made = encodings_of(schema, tokenizer)

    done: list[Encoding] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode_module, "CHUNK_TOKENS", limit)
        found = tuple(batches(chains(made)))
    for batch in found:
        assert len(batch) == 1 or sum(map(num_tokens_of, batch)) <= limit
        for chain in batch:
            assert {part.encoding for part in chain[0].context} <= set(done)
            for position, link in enumerate(chain):
                assert link.context == (*chain[0].context, *(each.whole for each in chain[:position]))
        done.extend(link for chain in batch for link in chain)

    assert sorted(done, key=made.index) == list(made)


@given(data=st.data(), schema=strategies.schemas(), tokenizer=strategies.TOKENIZERS)
@settings(max_examples=100)
def test_missing_is_closed_over_contexts(data: st.DataObject, schema: CheckedSchema, tokenizer: ByteTokenizer) -> None:
    """The missing encodings are exactly those wanted, with their missing contexts."""
    made = encodings_of(schema, tokenizer)
    some = st.lists(st.sampled_from(made), unique=True) if made else st.just([])
    wanted, held = data.draw(some), data.draw(some)

    missing = missing_encodings(wanted, held.__contains__)

    assert {*wanted} - {*held} <= {*missing}
    assert not {*held} & {*missing}
    attended = {part.encoding for each in missing for part in each.context}
    assert attended - {*held} <= {*missing}
    assert {*missing} <= {*wanted} | attended
    for index, each in enumerate(missing):
        assert not {part.encoding for part in each.context} & {*missing[index:]}, "contexts come first"


@pytest.mark.law
@given(schema=strategies.schemas(), tokenizer=strategies.TOKENIZERS)
@settings(max_examples=law_examples(0.2))
def test_together_or_alone_gives_the_same_kv(schema: CheckedSchema, tokenizer: ByteTokenizer) -> None:
    """KV computed in chains, batches and chunks equals KV computed one encoding after another."""
    made = encodings_of(schema, tokenizer)
    together = executor().fetch(made).kv_of

    one_by_one = executor()
    alone = {each: one_by_one.fetch([each]).kv_of[each] for each in made}

    assert_alike(together, alone)


def encodings_of(schema: CheckedSchema, tokenizer: ByteTokenizer) -> tuple[Encoding, ...]:
    """The encodings of a schema, each once, contexts first."""
    return serve_schema(schema, tokenizer, MODEL.context_length).encodings


def executor() -> Executor:
    """The model with an empty store."""
    return Executor(MODEL, Store(MODEL.shape), lambda: "model")


def assert_alike(first: Mapping[Encoding, KV], second: Mapping[Encoding, KV]) -> None:
    """The same encodings have the same KV."""
    assert first.keys() == second.keys()
    for each, run in first.items():
        assert torch.allclose(run.keys, second[each].keys, atol=1e-11)
        assert torch.allclose(run.values, second[each].values, atol=1e-11)
