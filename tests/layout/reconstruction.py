"""The tokens of a prompt at their positions, as `promptcache.testing` has them, for the byte tokenizer."""

from __future__ import annotations

from promptcache.language.checked import Selection
from promptcache.layout import lay_out
from tests.fakes import ByteTokenizer
from tests.laws.position_oracle import expected_tokens


def reference_tokens(selection: Selection) -> list[tuple[int, int]]:
    """Return position and ID of every token that the byte tokenizer gives to a prompt."""
    return expected_tokens(selection, lay_out(selection.schema, ByteTokenizer()), ByteTokenizer())
