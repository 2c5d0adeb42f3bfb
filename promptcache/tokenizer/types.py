"""What the layout asks of a tokenizer.

Comes in: text. Goes out: token IDs in which no control token stands that the text forged. This file knows neither
tokenizer files nor chat templates; those are read in `layout.hub_tokenizer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from promptcache.language import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFrame:
    """The tokens that open and close a chat turn, control tokens included, and their text."""

    header_ids: tuple[int, ...]
    footer_ids: tuple[int, ...]
    header: str
    footer: str


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token IDs and back, without special tokens, prefix space or forged control tokens."""

    @property
    def bos_ids(self) -> tuple[int, ...]:
        """The tokens that stand at position 0 of every prompt: one, or none where the model uses none."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens at which generation stops: the end of a turn among them."""

    @property
    def control_ids(self) -> frozenset[int]:
        """Special and added tokens: no text of a schema or prompt ever becomes one."""

    @property
    def fingerprint(self) -> str:
        """Digest over vocabulary, rules and chat template."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user should know about this tokenizer, a template without a system role for one."""

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the token IDs of `text`, none of them a control token; they decode to `text`."""

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of `token_ids`, control tokens in their written form."""

    def frame(self, role: Role) -> TurnFrame:
        """Return what opens and closes a turn of `role`, whatever stands in it or around it."""
