"""The lower bound of the number of tokens never exceeds the number of tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcache.tokenizer import DEMO_FOLDER, Before, HubTokenizer, Markup, min_num_tokens
from promptcache.tokenizer.token_bound import TokenBound, read_bound
from promptcache.tokenizer.token_bytes import ALPHABET

BYTES = {"type": "ByteLevel", "add_prefix_space": False}
SMALL: dict[str, Any] = {
    "normalizer": None,
    "pre_tokenizer": BYTES,
    "added_tokens": [],
    "model": {"type": "BPE", "vocab": {**dict.fromkeys(ALPHABET, 0), "abc": 1}, "unk_token": None},
}
RULES = {
    "bytes": ({}, TokenBound(max_characters=3)),
    "composing": ({"normalizer": {"type": "NFC"}}, TokenBound(max_characters=3, composes=True)),
    "added": (
        {"added_tokens": [{"content": "<long>", "lstrip": True, "rstrip": False}]},
        TokenBound(max_characters=6, drops_spaces=True),
    ),
    "accents dropped": ({"normalizer": {"type": "StripAccents"}}, TokenBound(max_characters=None)),
    "spaces dropped": ({"pre_tokenizer": {"type": "Whitespace"}}, TokenBound(max_characters=None)),
    "parts dropped": ({"pre_tokenizer": {"type": "Split", "behavior": "Removed"}}, TokenBound(max_characters=None)),
    "joined": (
        {"normalizer": {"type": "Replace", "pattern": {"String": "  "}, "content": " "}},
        TokenBound(max_characters=None),
    ),
    "patterns": (
        {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}},
        TokenBound(max_characters=None),
    ),
    "unknown dropped": ({"model": {**SMALL["model"], "vocab": {"a": 0}}}, TokenBound(max_characters=None)),
    "words": ({"model": {"type": "WordPiece", "vocab": {"a": 0}}}, TokenBound(max_characters=None)),
}


@pytest.mark.parametrize(("change", "bound"), RULES.values(), ids=RULES)
def test_rules_that_drop_or_join_characters_have_no_bound(change: dict[str, Any], bound: TokenBound) -> None:
    """A bound is known only where each character is a part of some token."""
    assert read_bound({**SMALL, **change}) == bound


TEXTS = st.lists(st.sampled_from(["a", " ", "    ", "stone crab", "<|begin|>", "é", "e\u0301", "\u1f82", "🦀", "\n"]))


@given(TEXTS, st.sampled_from(Before), st.booleans())
def test_a_text_has_no_fewer_tokens(demo: HubTokenizer, texts: list[str], before: Before, markup: bool) -> None:
    """The bound of the demo model holds for texts and for markup, wherever they stand."""
    text = "".join(texts)
    (found,) = demo.tokenize_parts([Markup(text) if markup else text], before)

    assert demo.token_bound.min_num_tokens(text) <= len(found)


@pytest.fixture(scope="session")
def demo() -> HubTokenizer:
    """The tokenizer of the demo model."""
    return HubTokenizer.from_folder(DEMO_FOLDER)


def test_only_large_texts_are_estimated(demo: HubTokenizer) -> None:
    """The tokens of others can be counted."""
    assert min_num_tokens(demo, "x" * 2**16) == 0
    assert min_num_tokens(demo, "x" * (2**16 + 1)) > 1000


def test_the_bound_counts_composed_characters() -> None:
    """Four characters may become one; text in ASCII stays as it is."""
    bound = TokenBound(max_characters=2, composes=True, drops_spaces=True)

    assert bound.min_num_tokens("a" * 16 + " " * 100) == 8
    assert bound.min_num_tokens("é" * 16) == 2
