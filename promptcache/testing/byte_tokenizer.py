"""A tokenizer without files: one token for each byte of UTF-8, and control tokens for BOS, headers and footers.

It makes positions easy to count in tests. No model was trained with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from promptcache.language import ChatMessages, Role
from promptcache.tokenizer import FROZEN_DATE, NO_OPTIONS, Before, Markup

_NUM_BYTES = 256


class ByteTokenizer:
    """Token IDs 0 to 255 are bytes; then come BOS and, for each role, one header and one footer token."""

    def __init__(self, *, bos: bool = True) -> None:
        self._controls = ("<bos>", *(form for role in Role for form in (f"<{role}>", f"</{role}>")))
        self._bos_ids = (_NUM_BYTES,) if bos else ()

    @property
    def vocab_size(self) -> int:
        """The number of token IDs."""
        return _NUM_BYTES + len(self._controls)

    @property
    def bos_ids(self) -> tuple[int, ...]:
        """BOS, unless the tokenizer was made without."""
        return self._bos_ids

    @property
    def bos_form(self) -> str:
        """The written form of BOS."""
        return "<bos>" if self._bos_ids else ""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The assistant's footer."""
        return (_NUM_BYTES + self._controls.index(f"</{Role.ASSISTANT}>"),)

    @property
    def control_ids(self) -> frozenset[int]:
        """Every token ID that is not a byte."""
        return frozenset(range(_NUM_BYTES, self.vocab_size))

    @property
    def fingerprint(self) -> str:
        """A fixed name: the vocabulary has no versions."""
        return "byte-tokenizer-bos" if self._bos_ids else "byte-tokenizer"

    @property
    def warnings(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def answer_start(self) -> str:
        """Nothing."""
        return ""

    @property
    def reasoning_tags(self) -> None:
        """None."""

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
        return bytes((token_id,)) if token_id < _NUM_BYTES else self._controls[token_id - _NUM_BYTES].encode()

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
        bos = "<bos>" if self._bos_ids else ""
        return f"{bos}{''.join(turns)}{f'<{Role.ASSISTANT}>' if generation_prompt else ''}"

    def tokenize_parts(self, parts: Sequence[str], before: Before) -> tuple[tuple[int, ...], ...]:
        """Return the bytes of texts; in markup, control tokens become their tokens."""
        return tuple(self._marked(part) if isinstance(part, Markup) else self.tokenize(part) for part in parts)

    def _marked(self, text: str) -> tuple[int, ...]:
        pieces = re.split(f"({'|'.join(map(re.escape, self._controls))})", text)
        found = (
            (_NUM_BYTES + self._controls.index(piece),) if piece in self._controls else self.tokenize(piece)
            for piece in pieces
        )
        return tuple(token_id for each in found for token_id in each)
