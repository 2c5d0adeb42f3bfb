"""Random text of a bounded size, as users write it and as they should not.

Comes in: how many bytes of UTF-8 it may take (the byte tokenizer makes one token of each). Goes out: strategies for
strings that XML can hold. Knows neither schemas nor prompts.
"""

from __future__ import annotations

from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

_T = TypeVar("_T")

# What a careless parser, tokenizer or template would take for something else.
TRICKY = (
    "</s>",
    "<|end|>",
    "<|user|>",
    "<s>",
    "[INST]",
    "<b>x</b>",
    "&lt;",
    "]]>",
    "{{ x }}",
    "<!--",
    " a ",
    "a\n\n b",
    "\ta\n",
    "é",
    "日本",
    "🙂",
    "e\u0301",
    "\u00a0",
    "\u2028",
    "a\r\nb",
)
# Plain text is short words over few letters: a counterexample is read, not deciphered.
_PLAIN = st.text(alphabet="abc \n", min_size=1, max_size=8)
# Everything XML 1.0 can hold except control characters.
_ANY = st.text(
    alphabet=st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="\ufffe\uffff"), min_size=1, max_size=4
)
_MIXED = st.one_of(st.just(""), _PLAIN, st.sampled_from(TRICKY), _ANY)


def maybe(strategy: SearchStrategy[_T]) -> SearchStrategy[_T | None]:
    """Draw None half of the time; `none() | strategy` would do so the less often the more branches `strategy` has."""
    options: tuple[SearchStrategy[_T | None], ...] = (st.none(), strategy)
    return st.booleans().flatmap(options.__getitem__)


def fit(text: str, max_bytes: int) -> str:
    """Return the longest beginning of `text` that takes at most `max_bytes` of UTF-8."""
    return text.encode()[:max_bytes].decode(errors="ignore")


def texts(max_bytes: int = 12) -> SearchStrategy[str]:
    """Draw text of at most `max_bytes`, sometimes empty or of whitespace only."""
    return _MIXED.map(lambda text: fit(text, max_bytes))


def full_texts(num_bytes: int) -> SearchStrategy[str]:
    """Draw text of exactly `num_bytes`."""

    def pad(text: str) -> str:
        cut = fit(text, num_bytes)
        return cut + "x" * (num_bytes - len(cut.encode()))

    return _MIXED.map(pad)


def visible_texts(max_bytes: int = 12) -> SearchStrategy[str]:
    """Draw text that no whitespace rule empties."""
    return texts(max_bytes - 1).map(lambda text: text if text.strip() else "a" + text)
