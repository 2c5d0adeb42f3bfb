"""Stop strings: a stopping criterion over the bytes of the last tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

_REPLACEMENT = "�"
_PREFIX = "abcdef"
_NO_TEXT = b"\xff"  # does not occur in UTF-8
_HEX_BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")
_BYTES = {each: byte for byte, each in bytes_to_unicode().items()}  # type: ignore[no-untyped-call] # not annotated


class StopStrings:
    """A stopping criterion: a row stops when a stop string ends inside its last token.

    It stops at the same tokens as `StopStringCriteria` of transformers, without reading the whole vocabulary first.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop_strings: str | Sequence[str]) -> None:
        """Create a criterion.

        Args:
            tokenizer: Of the tokens of the rows.
            stop_strings: One text or several. Each ends a row.
        """
        strings = [stop_strings] if isinstance(stop_strings, str) else stop_strings
        self._tokenizer: Any = tokenizer
        self._stop_strings = tuple(each.encode() for each in strings)
        self._longest = max(map(len, self._stop_strings))
        self._before = self._tokenizer.tokenize(_PREFIX)
        self._bytes: dict[int, bytes] = {}

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        """Return for each row whether a stop string ends inside its last token."""
        ended = [self._has_ended(row) for row in input_ids[:, -self._longest :].tolist()]
        return torch.tensor(ended, device=input_ids.device)

    def _has_ended(self, token_ids: Sequence[int]) -> bool:
        *others, last = (self._bytes_of(token_id) for token_id in token_ids)
        before = b"".join(others)
        text = before + last
        return any(text.find(each, max(0, len(before) - len(each) + 1)) >= 0 for each in self._stop_strings)

    def _bytes_of(self, token_id: int) -> bytes:
        found = self._bytes.get(token_id)
        if found is None:
            found = self._bytes[token_id] = self._token_bytes(self._tokenizer.convert_ids_to_tokens(token_id))
        return found

    def _token_bytes(self, token: str | None) -> bytes:
        """Return the bytes that a token adds to a text; some decoders drop spaces at the beginning of a text."""
        if token is None:
            return _NO_TEXT
        text = self._tokenizer.convert_tokens_to_string([*self._before, token])
        text = text[text.index(_PREFIX) + len(_PREFIX) :]
        if _REPLACEMENT in text:  # the token is a part of a character
            if found := _HEX_BYTE.fullmatch(token):
                return bytes.fromhex(found[1])
            if all(each in _BYTES for each in token):
                return bytes(_BYTES[each] for each in token)
        return str(text).encode()
