"""What a store of encodings is.

Comes in: keys and KV. Goes out: the same KV, or None. An implementation knows keys, tensors and where it keeps them; it
knows no tokens, positions, schemas or models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import torch

from promptcache.kv.types import RunKV


@runtime_checkable
class Store(Protocol):
    """Encodings by key. Every method may be called from any thread."""

    def get(self, key: str) -> RunKV | None:
        """Return the KV kept under `key`, or None. The caller may hold it at will and must not change it."""

    def put(self, key: str, keys: torch.Tensor, values: torch.Tensor) -> RunKV:
        """Keep a copy of the KV under `key` and return where it rests; a key that is already there keeps what it has.

        Args:
            keys: `[L, Hkv, T, D]` in position order; not changed and not kept.
            values: As `keys`.
        """

    def delete(self, key: str) -> bool:
        """Forget `key`; return whether it was there. Holders of its KV keep it."""

    def keys(self) -> Iterator[str]:
        """Yield the keys that are there now."""

    def nbytes(self) -> int:
        """Bytes of all KV that is kept."""

    def reserve(self, sizes: Sequence[tuple[str, int]]) -> None:
        """Announce keys, with their numbers of tokens, in the order in which they would best lie. Only a hint."""
