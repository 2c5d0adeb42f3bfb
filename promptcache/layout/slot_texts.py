"""Find texts for slots by their number of tokens: the shortest, the longest, or one of a given length.

The space before a slot (`CheckedParameter.lead`) counts, but is no part of the texts.

Texts for a pattern are built from the syntax tree of Python's `re`. Every text is validated against the parameter
before it is returned.
"""

from __future__ import annotations

import re
import string
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

from promptcache.language import CheckedParameter, ParameterType, python_pattern, refusal
from promptcache.tokenizer import Tokenizer

_Tree: TypeAlias = Iterable[tuple[Any, Any]]
_LETTERS = f"{string.ascii_letters}{string.digits}{string.punctuation} éß日\n"
_ALPHABETS: Mapping[ParameterType, tuple[str, ...]] = {
    ParameterType.INT: (string.digits, f"{string.digits}-+"),
    ParameterType.NUMBER: (string.digits, f"{string.digits}.", f"{string.digits}.-+eE"),
    ParameterType.CHOICE: (),
}
_WORDS = (" x", "x")
_DIGITS = ("1", "9", "10")
_REPEATED = {ParameterType.INT: _DIGITS, ParameterType.NUMBER: _DIGITS, ParameterType.CHOICE: ()}
_MAX_MATCHING = 4_000  # characters of a text that a pattern matches
_NEAR = 32
_parse: Callable[[str], _Tree] = import_module("re._parser").parse
_CATEGORIES = {
    f"CATEGORY_{'NOT_' * sign.isupper()}{name}": re.compile(f"\\{sign}", re.ASCII)
    for name, letter in (("DIGIT", "d"), ("SPACE", "s"), ("WORD", "w"))
    for sign in (letter, letter.upper())
}


class SlotText(NamedTuple):
    """Text for a slot, and its number of tokens with the space before the slot.

    `extreme` means that no accepted text has fewer (or more) tokens.
    """

    text: str
    num_tokens: int
    extreme: bool


def shortest_text(parameter: CheckedParameter, tokenizer: Tokenizer) -> SlotText | None:
    """Return the accepted text with the fewest tokens, even if it is longer than the slot; None if there is none."""
    known = (each for each in ("", "0", "a", *_own(parameter), *_least_matching(parameter)))
    counted = [(slot_tokens(parameter, text, tokenizer), text) for text in known if refusal(parameter, text) is None]
    if not counted:
        return None
    least, text = min(counted, key=lambda each: each[0])
    return SlotText(text, least, extreme=least <= 1 or parameter.type is ParameterType.CHOICE)


def longest_text(parameter: CheckedParameter, tokenizer: Tokenizer) -> SlotText | None:
    """Return the accepted text with the most tokens that fits the slot, or None if there is none."""
    best, most = None, parameter.num_positions
    for text in _long_texts(parameter, tokenizer):
        count = slot_tokens(parameter, text, tokenizer)
        if count <= most and (best is None or count > best.num_tokens) and refusal(parameter, text) is None:
            best = SlotText(text, count, extreme=parameter.type is ParameterType.CHOICE or count == most)
            if count == most:
                break
    return best


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


def _own(parameter: CheckedParameter) -> Iterator[str]:
    """Yield the texts from the declaration of the parameter."""
    yield from parameter.choices
    yield from (text for text in (parameter.default, parameter.placeholder) if text is not None)


def _letters(parameter: CheckedParameter) -> Iterator[str]:
    """Yield sets of characters for texts of the parameter's type, including the literal characters of its pattern."""
    yield from _ALPHABETS.get(parameter.type, (_LETTERS + python_pattern(parameter.pattern or ""),))


def _least_matching(parameter: CheckedParameter) -> Iterator[str]:
    """Yield short texts that match the pattern; an empty text is followed by a non-empty one."""
    for letters in _letters(parameter):
        for num_extra in range(2):
            text = matching_text(parameter.pattern, letters, num_extra) if parameter.pattern is not None else None
            if text is not None:
                yield text


def _long_texts(parameter: CheckedParameter, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield texts with many tokens, and other candidates for the parameter."""
    for word in _REPEATED.get(parameter.type, _WORDS):
        text = fill_tokens(parameter.lead + word.strip(), word, parameter.num_positions, tokenizer)
        text = text.removeprefix(parameter.lead)
        if text == text.strip():
            yield text
    if parameter.pattern is not None:
        for letters in _letters(parameter):
            yield from _long_matching(parameter.pattern, letters, parameter.num_positions, tokenizer)
    yield from ("", "0", *_own(parameter))


def _long_matching(pattern: str, letters: str, num_tokens: int, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield matching texts of about `num_tokens` tokens, the longest first."""

    def count(num_extra: int) -> int:
        return len(tokenizer.tokenize(matching_text(pattern, letters, num_extra) or ""))

    stop = bisect_right(range(_MAX_MATCHING), num_tokens, key=count)
    for num_extra in reversed(range(max(0, stop - _NEAR), stop + _NEAR)):
        if (text := matching_text(pattern, letters, num_extra)) is not None:
            yield text


def matching_text(pattern: str, letters: str, num_extra: int = 0) -> str | None:
    """Return a text that a pattern probably matches, or None if none is found.

    Args:
        pattern: A regular expression of RE2.
        letters: Characters for character classes; the first one in the class is used.
        num_extra: Extra repetitions, shared by all repeated parts. Any number above 0 also selects the longest
            alternative instead of the shortest.
    """
    try:
        return _Matching(pattern, letters, num_extra).text(_tree(pattern))
    except (re.error, OverflowError, RecursionError):
        return None


@lru_cache(maxsize=64)
def _tree(pattern: str) -> _Tree:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Python warns of a possible nested set; patterns here have none
        return _parse(python_pattern(pattern))


class _Matching:
    """Builder of one text from the syntax tree of a pattern."""

    def __init__(self, pattern: str, letters: str, num_extra: int) -> None:
        self._letters = letters
        self._num_extra = num_extra
        num_repeats = sum(map(pattern.count, "*+?{")) or 1
        self._each, self._more = divmod(num_extra, num_repeats)

    def text(self, tree: _Tree) -> str | None:
        """Return a text for a sequence of parts."""
        parts = [self._part(str(name), value) for name, value in tree]
        found = [part for part in parts if part is not None]
        return "".join(found) if len(found) == len(parts) else None

    def _part(self, name: str, value: Any) -> str | None:
        match name:
            case "LITERAL":
                return chr(value)
            case "ANY" | "NOT_LITERAL" | "IN":
                return next((letter for letter in self._letters if _takes(name, value, letter)), None)
            case "SUBPATTERN":
                return self.text(value[-1])
            case "BRANCH":
                texts = [text for each in value[1] if (text := self.text(each)) is not None]
                return (max if self._num_extra else min)(texts, key=len, default=None)
            case "MAX_REPEAT" | "MIN_REPEAT":
                return self._repeated(*value)
            case "AT":
                return ""
        return None  # look-around, back references

    def _repeated(self, least: int, most: int, tree: _Tree) -> str | None:
        extra = self._each + (self._more > 0)
        self._more -= self._more > 0
        text = self.text(tree) if min(least + extra, most) else ""
        if not text or len(text) * least > _MAX_MATCHING:
            return "" if not least or text == "" else None
        return text * min(least + extra, most, max(least, _MAX_MATCHING // len(text)))


def _takes(name: str, value: Any, letter: str) -> bool:
    """Return whether a character class contains a letter."""
    match name:
        case "ANY":
            return letter != "\n"
        case "LITERAL":
            return ord(letter) == int(value)
        case "NOT_LITERAL":
            return ord(letter) != int(value)
        case "RANGE":
            return bool(value[0] <= ord(letter) <= value[1])
        case "CATEGORY":
            return _CATEGORIES[str(value)].match(letter) is not None
    is_negated = str(value[0][0]) == "NEGATE"
    return any(_takes(str(each), inner, letter) for each, inner in value[is_negated:]) is not is_negated
