"""Texts for slots, measured in tokens: cut to a number of them, filled up to it, the shortest and the longest.

Comes in: a parameter and a tokenizer. Goes out: texts that the parameter takes. This file knows no schema around it.
"""

from __future__ import annotations

import string
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from promptcache.language.schema import Parameter, ParameterType
from promptcache.language.syntax.patterns import matching_text
from promptcache.language.syntax.values import refusal
from promptcache.tokenizer import Tokenizer

_LETTERS: Mapping[ParameterType, str] = {ParameterType.INT: string.digits, ParameterType.NUMBER: string.digits}
_WORDS = (" x", "x")
_DIGITS = ("1", "9", "10")
_REPEATED = {ParameterType.INT: _DIGITS, ParameterType.NUMBER: _DIGITS, ParameterType.CHOICE: ()}
_MAX_LETTERS = 16  # of a token in a text that a pattern matches
_MAX_MATCHING = 4_000
_MAX_LEAST = 100  # characters of a shortest text that is not empty
_NEAR = 32


class SlotText(NamedTuple):
    """A text for a slot and its tokens; `extreme` says that no other text has fewer, or more, whichever was wanted."""

    text: str
    num_tokens: int
    extreme: bool


def shortest_text(parameter: Parameter, tokenizer: Tokenizer) -> SlotText | None:
    """Return the text with the fewest tokens that the parameter takes, be its slot ever so small; None without any."""
    known = (each for each in ("", "0", "a", *_own(parameter), *_least_matching(parameter)))
    counted = [(len(tokenizer.tokenize(text)), text) for text in known if refusal(parameter, text) is None]
    if not counted:
        return None
    least, text = min(counted, key=lambda each: each[0])
    return SlotText(text, least, extreme=least <= 1 or parameter.type is ParameterType.CHOICE)


def longest_text(parameter: Parameter, tokenizer: Tokenizer) -> SlotText | None:
    """Return the text with the most tokens that the parameter takes and its slot holds, or None without any."""
    best = None
    for text in _long_texts(parameter, tokenizer):
        count = len(tokenizer.tokenize(text))
        if count <= parameter.length and (best is None or count > best.num_tokens) and refusal(parameter, text) is None:
            best = SlotText(text, count, extreme=parameter.type is ParameterType.CHOICE or count == parameter.length)
            if count == parameter.length:
                break
    return best


def fit_tokens(text: str, num_tokens: int, tokenizer: Tokenizer) -> str:
    """Return a beginning of `text` that has at most `num_tokens` tokens."""

    def count(length: int) -> int:
        return len(tokenizer.tokenize(text[:length]))

    if count(len(text)) <= num_tokens:
        return text
    length = max(0, bisect_right(range(len(text)), num_tokens, key=count) - 1)
    longer = range(min(len(text), length + _NEAR), length, -1)  # a longer text may have fewer tokens
    return text[: next((each for each in longer if count(each) <= num_tokens), length)]


def fill_tokens(beginning: str, word: str, num_tokens: int, tokenizer: Tokenizer) -> str:
    """Return a text of exactly `num_tokens` tokens where repeating `word` can make one, else the longest that fits."""
    text = fit_tokens(beginning, num_tokens, tokenizer)
    missing = num_tokens - len(tokenizer.tokenize(text))
    while missing > 0:
        longer = fit_tokens(text + word * missing, num_tokens, tokenizer)
        if len(longer) <= len(text):
            return text
        text, missing = longer, num_tokens - len(tokenizer.tokenize(longer))
    return text


def _own(parameter: Parameter) -> Iterator[str]:
    """Yield the texts that the parameter's declaration names."""
    yield from parameter.choices
    yield from (text for text in (parameter.default, parameter.placeholder) if text is not None)


def _least_matching(parameter: Parameter) -> Iterator[str]:
    """Yield the shortest text that the pattern matches and, if that is empty, the shortest that is not."""
    texts = (_matching(parameter, size) for size in range(_MAX_LEAST))
    if (text := next(texts)) is not None:
        yield text
        yield from islice(filter(None, texts), 0 if text else 1)


def _matching(parameter: Parameter, size: int) -> str | None:
    """Return a text of about `size` characters that the pattern matches, or None without a pattern or a text."""
    if parameter.pattern is None:
        return None
    return matching_text(parameter.pattern, size, _LETTERS.get(parameter.type, string.ascii_letters))


def _long_texts(parameter: Parameter, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield texts of many tokens, and what else the parameter may take."""
    for word in _REPEATED.get(parameter.type, _WORDS):
        text = fill_tokens(word.strip(), word, parameter.length, tokenizer)
        if text == text.strip():
            yield text
    yield from _long_matching(parameter, tokenizer)
    yield from ("", "0", *_own(parameter))


def _long_matching(parameter: Parameter, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield texts that the pattern matches, of about as many tokens as the slot holds."""
    sizes = range(min(_MAX_LETTERS * parameter.length, _MAX_MATCHING) + 1)
    if _matching(parameter, 0) is not None:
        middle = bisect_right(
            sizes, parameter.length, key=lambda size: len(tokenizer.tokenize(_matching(parameter, size) or ""))
        )
        yield from (_matching(parameter, size) or "" for size in sizes[max(0, middle - _NEAR) : middle + _NEAR][::-1])
