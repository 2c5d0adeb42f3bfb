"""The identity of an encoding: everything its KV depends on, and a digest over that.

Comes in: the model's fingerprint, tokens, positions and the keys of the context. Goes out: a hexadecimal sha256.
Because the keys of the context are digested too, keys form a Merkle tree: change one word and exactly the keys of what
has seen it change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from promptcache.diagnostics import Short

FORMAT_VERSION = 2


class Codec(StrEnum):
    """How KV is kept: as computed, or quantized (keys per channel, values per token)."""

    FULL = "full"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def lossy(self) -> bool:
        """Whether what comes back differs from what was computed."""
        return self is not Codec.FULL


@dataclass(frozen=True, kw_only=True, repr=False)
class Recipe(Short):
    """Everything that an encoding's KV depends on: two of them with the same recipe are the same.

    Attributes:
        fingerprint: Of the model, tokenizer and numerical regime.
        token_ids: In position order.
        position_ids: As long as `token_ids`.
        context: Digest over the keys of the encodings it attends to, as `context_digest` gives it.
        codec: How it is kept. What was computed from quantized KV differs, too: the keys of its context say so.
    """

    fingerprint: str
    token_ids: tuple[int, ...]
    position_ids: tuple[int, ...]
    context: str
    codec: Codec = Codec.FULL

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.position_ids), "one position for each token"

    @property
    def num_tokens(self) -> int:
        """Tokens of the run."""
        return len(self.token_ids)

    @cached_property
    def key(self) -> str:
        """64 hexadecimal digits."""
        head = f"promptcache encoding {FORMAT_VERSION}\n{self.fingerprint}\n{self.codec}\n{self.num_tokens}\n"
        digest = hashlib.sha256(head.encode())
        digest.update(np.asarray(self.token_ids, dtype="<i8").tobytes())
        digest.update(np.asarray(self.position_ids, dtype="<i8").tobytes())
        digest.update(self.context.encode())
        return digest.hexdigest()


def context_digest(keys: Iterable[str]) -> str:
    """Return one digest for the keys of a context, in position order; 64 hexadecimal digits."""
    return hashlib.sha256("\n".join(keys).encode()).hexdigest()
