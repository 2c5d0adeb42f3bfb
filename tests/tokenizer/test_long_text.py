"""Long texts are refused without being tokenized as a whole, and no text that fits is refused."""

from __future__ import annotations

from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcache.tokenizer import DEMO_FOLDER, Before, HubTokenizer, Markup, has_more_tokens
from tests.tokenizer.small_tokenizers import byte_level, llama_like, unigram, word_piece

TOKENIZERS = [
    HubTokenizer.from_folder(DEMO_FOLDER),
    *(HubTokenizer.from_parts(rules(), {}) for rules in (byte_level, llama_like, unigram, word_piece)),
]
PIECES = ["a", " ", " " * 300, "stone crab ", "<|begin|>", "é", "e\u0301", "\u1f82", "🦀", "\n", "x" * 200, "ab" * 90]
TEXTS = st.lists(st.tuples(st.sampled_from(PIECES), st.integers(1, 20)), min_size=1, max_size=8).map(
    lambda pieces: "".join(piece * count for piece, count in pieces)
)


@pytest.mark.law
@given(TEXTS, st.sampled_from(TOKENIZERS), st.sampled_from(Before), st.booleans())
def test_a_text_that_fits_is_not_refused(text: str, tokenizer: HubTokenizer, before: Before, markup: bool) -> None:
    """Whatever the slices cut, a text with exactly the allowed number of tokens passes."""
    module = import_module("promptcache.tokenizer.types")
    (found,) = tokenizer.tokenize_parts([Markup(text) if markup else text], before)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_USUAL", 0)
        patch.setattr(module, "SLICE", 500)
        assert not has_more_tokens(tokenizer, text, len(found))


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=["demo", "byte_level", "llama_like", "unigram", "word_piece"])
def test_a_long_text_is_refused_early(tokenizer: HubTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ten megabytes only the beginning is tokenized."""
    lengths: list[int] = []
    original = HubTokenizer.tokenize_parts

    def noted(self: HubTokenizer, parts: list[str], before: Before) -> tuple[tuple[int, ...], ...]:
        lengths.append(sum(map(len, parts)))
        return original(self, parts, before)

    monkeypatch.setattr(HubTokenizer, "tokenize_parts", noted)

    assert has_more_tokens(tokenizer, "a stone crab, " * 700_000, 4_096)
    assert sum(lengths) < 2**18
    assert max(lengths) <= 2**16


def test_a_text_of_usual_length_is_not_tokenized_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight characters for each allowed token are no long text."""
    monkeypatch.setattr(HubTokenizer, "tokenize_parts", lambda *_: 1 / 0)

    assert not has_more_tokens(TOKENIZERS[0], "x" * 2**16, 10)
    assert not has_more_tokens(TOKENIZERS[0], "x" * 800_000, 100_000)
