"""The protocol of tokenizers that layouts use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from promptcache.language import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFrame:
    """The header and footer of a chat turn: token IDs, with control tokens, and their text."""

    header_ids: tuple[int, ...]
    footer_ids: tuple[int, ...]
    header: str
    footer: str


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token IDs and back, without special tokens, prefix space or control tokens from text."""

    @property
    def bos_ids(self) -> tuple[int, ...]:
        """The tokens at the start of every prompt: one, or none if the model uses none."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that stop the generation, among them the end of a turn."""

    @property
    def control_ids(self) -> frozenset[int]:
        """Special and added tokens. No text of a schema or prompt becomes one."""

    @property
    def fingerprint(self) -> str:
        """Digest over vocabulary, rules and chat template."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about this tokenizer, such as a chat template without a system role."""

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the token IDs of `text`, none of them a control token; they decode to `text`."""

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of `token_ids`, control tokens in their written form."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token in UTF-8, also those of a token that is a part of a character."""

    def frame(self, role: Role) -> TurnFrame:
        """Return the header and footer of a turn of `role`. They do not depend on the content or on other turns."""


def answer_text(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """Return the text of an answer: `token_ids` without control tokens."""
    control = tokenizer.control_ids
    return tokenizer.detokenize([each for each in token_ids if each not in control])
