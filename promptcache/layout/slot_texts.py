"""Texts for slots, measured in tokens: the shortest and the longest that a parameter accepts, and texts cut or filled
to a number of tokens.
"""

from __future__ import annotations

import string
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from promptcache.language.schema import Parameter, ParameterType
from promptcache.language.syntax.patterns import Pattern
from promptcache.language.syntax.values import refusal
from promptcache.tokenizer import Tokenizer

_LETTERS = f"{string.ascii_letters}{string.digits}{string.punctuation} éß日\n"
_ALPHABETS: Mapping[ParameterType, tuple[str, ...]] = {
    ParameterType.INT: (string.digits, f"{string.digits}-+"),
    ParameterType.NUMBER: (string.digits, f"{string.digits}.", f"{string.digits}.-+eE"),
    ParameterType.CHOICE: (),
}
_WORDS = (" x", "x")
_DIGITS = ("1", "9", "10")
_REPEATED = {ParameterType.INT: _DIGITS, ParameterType.NUMBER: _DIGITS, ParameterType.CHOICE: ()}
_MAX_LETTERS = 16  # of a token in a text that a pattern matches
_MAX_MATCHING = 4_000
_NEAR = 32


class SlotText(NamedTuple):
    """A text for a slot with its number of tokens; `extreme` if no accepted text has fewer, or more, as was asked."""

    text: str
    num_tokens: int
    extreme: bool


def shortest_text(parameter: Parameter, tokenizer: Tokenizer) -> SlotText | None:
    """Return the accepted text with the fewest tokens, even if it is longer than the slot; None if there is none."""
    known = (each for each in ("", "0", "a", *_own(parameter), *_least_matching(parameter)))
    counted = [(len(tokenizer.tokenize(text)), text) for text in known if refusal(parameter, text) is None]
    if not counted:
        return None
    least, text = min(counted, key=lambda each: each[0])
    return SlotText(text, least, extreme=least <= 1 or parameter.type is ParameterType.CHOICE)


def longest_text(parameter: Parameter, tokenizer: Tokenizer) -> SlotText | None:
    """Return the accepted text with the most tokens that fits the slot, or None if there is none."""
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


def _letters(parameter: Parameter) -> Iterator[str]:
    """Yield sets of characters for texts of the parameter's type, those that its pattern writes out among them."""
    yield from _ALPHABETS.get(parameter.type, (_LETTERS + (parameter.pattern or ""),))


def _least_matching(parameter: Parameter) -> Iterator[str]:
    if parameter.pattern is not None:
        pattern = Pattern(parameter.pattern)
        for letters in _letters(parameter):
            if (text := pattern.shortest(letters)) is not None:
                yield text
            if text == "":
                yield from islice(filter(None, pattern.matching(letters, _MAX_MATCHING)), 1)


def _long_texts(parameter: Parameter, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield texts of many tokens, and what else the parameter may take."""
    for word in _REPEATED.get(parameter.type, _WORDS):
        text = fill_tokens(word.strip(), word, parameter.length, tokenizer)
        if text == text.strip():
            yield text
    if parameter.pattern is not None:
        pattern = Pattern(parameter.pattern)
        for letters in _letters(parameter):
            yield from _long_matching(pattern, letters, parameter.length, tokenizer)
    yield from ("", "0", *_own(parameter))


def _long_matching(pattern: Pattern, letters: str, num_tokens: int, tokenizer: Tokenizer) -> list[str]:
    """Return texts that match, those of about so many tokens, the longest first."""
    size = min(_MAX_LETTERS * num_tokens, _MAX_MATCHING)
    texts = list(islice(pattern.matching(letters, size), _MAX_MATCHING))
    stop = bisect_right(texts, num_tokens, key=lambda text: len(tokenizer.tokenize(text)))
    return texts[max(0, stop - _NEAR) : stop + _NEAR][::-1]
