"""A tokenizer without files: one token for each byte of UTF-8, and control tokens for BOS, headers and footers.

It makes positions easy to count in tests. No model was trained with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from promptcache.language import Role
from promptcache.tokenizer import TurnFrame

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
    def eos_ids(self) -> tuple[int, ...]:
        """The assistant's footer."""
        return self.frame(Role.ASSISTANT).footer_ids

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
        """None: every role has a frame of its own."""
        return ()

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the bytes of `text`."""
        return tuple(text.encode("utf-8"))

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of `token_ids`: control tokens in their written form, broken UTF-8 as U+FFFD."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the byte of a token, or the written form of a control token."""
        return bytes((token_id,)) if token_id < _NUM_BYTES else self._controls[token_id - _NUM_BYTES].encode()

    def frame(self, role: Role) -> TurnFrame:
        """Return one header and one footer token."""
        header, footer = f"<{role}>", f"</{role}>"
        header_id, footer_id = (_NUM_BYTES + self._controls.index(form) for form in (header, footer))
        return TurnFrame(header_ids=(header_id,), footer_ids=(footer_id,), header=header, footer=footer)
