"""Text for slots, measured in the tokens of any tokenizer: short, exactly as long as the slot, and awkward.

Comes in: a parameter, the strategy for its texts that fit by their bytes, and a tokenizer. Goes out: a strategy for
texts that fit by their tokens. A byte is a token at most under every tokenizer that cuts text into pieces, so what fits
by its bytes fits; this file adds the texts in between, up to the exact maximum.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from promptcache.language.schema import Parameter
from promptcache.layout import fill_tokens, fit_tokens, shortest_text
from promptcache.testing.choices import fits, is_restricted
from promptcache.testing.texts import TRICKY
from promptcache.tokenizer import Tokenizer

_WORDS = ("x", " a", " the", "-", "1", "é", " 日", "\n")
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


def plain_argument(parameter: Parameter, tokenizer: Tokenizer) -> str:
    """Return a short text that a required parameter takes.

    Raises:
        ValueError: none was found.
    """
    shortest = shortest_text(parameter, tokenizer)
    known = (parameter.default, parameter.placeholder, *parameter.choices, *_PLAIN, shortest and shortest.text)
    found = next((text for text in known if text is not None and fits(parameter, text, tokenizer)), None)
    if found is None:
        takes = f", which takes text like {parameter.pattern}" if parameter.pattern is not None else ""
        raise ValueError(f"no text was found for the slot '{parameter.name}' of length {parameter.length}{takes}")
    return found
