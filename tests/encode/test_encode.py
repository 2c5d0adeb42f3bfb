"""Encoding in chains, batches and chunks, compared with one encoding after another."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.encode import encode as encode_module
from promptcache.encode.encode import encoding_batches, num_tokens_of
from promptcache.language import CheckedSchema
from promptcache.layout import Encoding
from promptcache.planning import serve_schema
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tests import strategies

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
        found = tuple(encoding_batches(made))
    for batch in found:
        assert len(batch) == 1 or sum(map(num_tokens_of, batch)) <= limit
        for chain in batch:
            assert {part.encoding for part in chain[0].context} <= set(done)
            for position, link in enumerate(chain):
                assert link.context == (*chain[0].context, *(each.whole for each in chain[:position]))
        done.extend(link for chain in batch for link in chain)

    assert sorted(done, key=made.index) == list(made)


def encodings_of(schema: CheckedSchema, tokenizer: ByteTokenizer) -> tuple[Encoding, ...]:
    """The encodings of a schema, each once, contexts first."""
    return serve_schema(schema, tokenizer, MODEL.context_length).encodings
