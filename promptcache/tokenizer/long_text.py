"""Refusal of texts that cannot fit, before they are tokenized: a million characters take hundreds of megabytes."""

from __future__ import annotations

from promptcache.tokenizer.types import Before, Markup, Tokenizer

SLICE = 2**16
"""Characters that are tokenized at once, which takes little memory."""

_CUT = 256
"""Tokens that a cut adds at most: a word that is cut may have other tokens than the whole word."""

_USUAL = 8
"""Characters for each allowed token of a text that is tokenized as a whole: ordinary text has fewer."""


def has_more_tokens(tokenizer: Tokenizer, text: str, num_tokens: int) -> bool:
    """Return whether a long text has more than a number of tokens; False for a text that is short enough to count.

    The text is tokenized in slices, up to the first one that exceeds the number. Written forms of control tokens count
    as one token, so that markup is not counted twice.
    """
    if len(text) <= max(SLICE, _USUAL * num_tokens):
        return False
    least = 0
    for start in range(0, len(text), SLICE):
        (found,) = tokenizer.tokenize_parts([Markup(text[start : start + SLICE])], Before.TEXT)
        least += max(0, len(found) - _CUT)
        if least > num_tokens:
            return True
    return False
