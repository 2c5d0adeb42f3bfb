"""Bytes of tokens: those of the text that they are parts of, for every kind of tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcache.tokenizer import DEMO_FOLDER, HubTokenizer
from tests.tokenizer.test_hub_tokenizer import hub, texts

TEXTS = st.lists(st.one_of(texts(), st.text(max_size=4), st.sampled_from(["é", "’", "🙂", "\ufffd"])), max_size=4).map(
    "".join
)


@pytest.mark.parametrize("kind", ["byte level", "llama", "unigram"])
@given(text=TEXTS)
def test_bytes_of_tokens_make_their_text(kind: str, text: str) -> None:
    """The bytes of the tokens of a text, one after another, are the text in UTF-8."""
    tokenizer = hub(kind)

    assert b"".join(map(tokenizer.token_bytes, tokenizer.tokenize(text))) == text.encode()


@pytest.mark.parametrize("kind", ["byte level", "llama", "unigram", "word piece", "demo"])
def test_every_token_has_the_bytes_that_decode_to_its_text(kind: str) -> None:
    """Each token of a vocabulary, alone, decodes to its bytes, control tokens to their written form."""
    tokenizer = HubTokenizer.from_folder(DEMO_FOLDER) if kind == "demo" else hub(kind)
    token_ids = range(200)
    assert any(token_id in tokenizer.control_ids for token_id in token_ids)

    for token_id in token_ids:
        assert tokenizer.token_bytes(token_id).decode(errors="replace") == tokenizer.detokenize([token_id])
