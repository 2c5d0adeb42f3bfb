"""Texts of a number of tokens for slots. The space before a slot counts, but is no part of its texts."""

from __future__ import annotations

from bisect import bisect_right

from promptcache.language import CheckedParameter
from promptcache.tokenizer import Tokenizer

_NEAR = 32


def slot_tokens(parameter: CheckedParameter, text: str, tokenizer: Tokenizer) -> int:
    """Return the number of positions that `text` takes in the slot, with the space before the slot."""
    return len(tokenizer.tokenize(parameter.lead + text))


def fit_tokens(text: str, num_tokens: int, tokenizer: Tokenizer) -> str:
    """Return a prefix of `text` that has at most `num_tokens` tokens."""

    def count(length: int) -> int:
        return len(tokenizer.tokenize(text[:length]))

    if count(len(text)) <= num_tokens:
        return text
    length = max(0, bisect_right(range(len(text)), num_tokens, key=count) - 1)
    longer = range(min(len(text), length + _NEAR), length, -1)  # a longer text may have fewer tokens
    return text[: next((each for each in longer if count(each) <= num_tokens), length)]


def fill_tokens(beginning: str, word: str, num_tokens: int, tokenizer: Tokenizer) -> str:
    """Return a text of exactly `num_tokens` tokens if repeating `word` gives one, else the longest that fits."""
    text = fit_tokens(beginning, num_tokens, tokenizer)
    missing = num_tokens - len(tokenizer.tokenize(text))
    while missing > 0:
        longer = fit_tokens(text + word * missing, num_tokens, tokenizer)
        if len(longer) <= len(text):
            return text
        text, missing = longer, num_tokens - len(tokenizer.tokenize(longer))
    return text
