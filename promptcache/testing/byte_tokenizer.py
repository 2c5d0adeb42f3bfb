"""A tokenizer without files: one token for each byte of UTF-8, and control tokens for BOS, headers and footers.

It makes positions easy to count in tests. No model was trained with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from promptcache.language import ChatMessages, Role
from promptcache.tokenizer import FROZEN_DATE, NO_OPTIONS, Before, Markup, Tokenizer

_NUM_BYTES = 256
_CONTROLS = ("<bos>", *(form for role in Role for form in (f"<{role}>", f"</{role}>")))


class ByteTokenizer(Tokenizer):
    """Token IDs 0 to 255 are bytes; then come BOS and, for each role, one header and one footer token."""

    vocab_size = _NUM_BYTES + len(_CONTROLS)
    control_ids = frozenset(range(_NUM_BYTES, vocab_size))
    eos_ids = (_NUM_BYTES + _CONTROLS.index(f"</{Role.ASSISTANT}>"),)
    bos_ids: tuple[int, ...] = ()
    bos_form = ""
    fingerprint = "byte-tokenizer"  # the vocabulary has no versions

    def __init__(self, *, bos: bool = True) -> None:
        if bos:
            self.bos_ids, self.bos_form, self.fingerprint = (_NUM_BYTES,), _CONTROLS[0], "byte-tokenizer-bos"

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the bytes of `text`."""
        return tuple(text.encode("utf-8"))

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of `token_ids`: control tokens in their written form, broken UTF-8 as U+FFFD."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", errors="replace")

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of `token_ids` without control tokens."""
        return self.detokenize([each for each in token_ids if each < _NUM_BYTES])

    def token_bytes(self, token_id: int) -> bytes:
        """Return the byte of a token, or the written form of a control token."""
        return bytes((token_id,)) if token_id < _NUM_BYTES else _CONTROLS[token_id - _NUM_BYTES].encode()

    def render_chat(
        self,
        messages: ChatMessages,
        *,
        generation_prompt: bool,
        options: Mapping[str, Any] = NO_OPTIONS,
        date: datetime = FROZEN_DATE,
    ) -> str:
        """Return turns with a header and a footer, behind BOS."""
        turns = (f"<{each['role']}>{each['content']}</{each['role']}>" for each in messages)
        return f"{self.bos_form}{''.join(turns)}{f'<{Role.ASSISTANT}>' if generation_prompt else ''}"

    def tokenize_parts(self, parts: Sequence[str], before: Before) -> tuple[tuple[int, ...], ...]:
        """Return the bytes of texts; in markup, control tokens become their tokens."""
        return tuple(self._marked(part) if isinstance(part, Markup) else self.tokenize(part) for part in parts)

    def _marked(self, text: str) -> tuple[int, ...]:
        pieces = re.split(f"({'|'.join(map(re.escape, _CONTROLS))})", text)
        found = (
            (_NUM_BYTES + _CONTROLS.index(piece),) if piece in _CONTROLS else self.tokenize(piece) for piece in pieces
        )
        return tuple(token_id for each in found for token_id in each)
