"""Text for slots, measured in the tokens of any tokenizer: short, exactly as long as the slot, and awkward.

Comes in: a parameter, the strategy for its texts that fit by their bytes, and a tokenizer. Goes out: a strategy for
texts that fit by their tokens. A byte is a token at most under every tokenizer that cuts text into pieces, so what fits
by its bytes fits; this file adds the texts in between, up to the exact maximum.
"""

from __future__ import annotations

import string

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from promptcache.language.patterns import Pattern
from promptcache.language.schema import Parameter
from promptcache.language.values import refusal
from promptcache.layout import Tokenizer
from promptcache.layout.slot_texts import fill_tokens, fit_tokens
from promptcache.testing.texts import TRICKY

_WORDS = ("x", " a", " the", "-", "1", "é", " 日", "\n")
_CHARACTERS = f"{string.ascii_letters}{string.digits}{string.punctuation} éß日\n"
_PLAIN = ("nine", "a", "0", "1", "")
_BEGINNINGS = ("", "a", "Nine days", *TRICKY)


def fitting_texts(parameter: Parameter, by_bytes: SearchStrategy[str], tokenizer: Tokenizer) -> SearchStrategy[str]:
    """Draw what fits into a slot, often exactly; a parameter that takes only certain texts keeps to those."""
    fitting = by_bytes.map(lambda text: fit_tokens(text, parameter.length, tokenizer))
    if is_restricted(parameter):
        return by_bytes

    def full(beginning: str, word: str) -> str:
        return fill_tokens(beginning, word, parameter.length, tokenizer)

    return st.one_of(fitting, st.builds(full, st.sampled_from(_BEGINNINGS), st.sampled_from(_WORDS)))


def is_restricted(parameter: Parameter) -> bool:
    """Whether a parameter takes only texts of a type, a list or a pattern."""
    kind = getattr(parameter, "type", None)
    others = (getattr(parameter, name, None) for name in ("choices", "pattern"))
    return any(others) or (kind is not None and str(kind) not in {"text", "string"})


def plain_argument(parameter: Parameter, tokenizer: Tokenizer) -> str:
    """Return a short text that a required parameter takes."""
    known = (parameter.default, parameter.placeholder, *parameter.choices, *_PLAIN)
    for text in known:
        fits = text is not None and len(tokenizer.tokenize(text)) <= parameter.length
        if text is not None and fits and refusal(parameter, text) is None:
            return text
    shortest = Pattern(parameter.pattern or "").shortest(_CHARACTERS)
    if shortest is None:
        raise ValueError(f"no text of common characters matches pattern={parameter.pattern!r} of '{parameter.name}'")
    return shortest
