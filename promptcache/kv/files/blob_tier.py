"""Tiers that store encodings as bytes, on disk or under a URL.

A blob tier knows nothing of arenas or devices. `kv/codec.py` turns KV into a `StoredEncoding` and back, and prescribes
the form of each of its tensors; `kv/files/format.py` checks every file against that before it returns a tensor.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from promptcache.kv.keys import Recipe
from promptcache.kv.store import Tier
from promptcache.kv.types import KVShape


class Form(NamedTuple):
    """Dtype and shape of one tensor of a stored encoding, as its codec prescribes."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredEncoding:
    """An encoding as a blob tier stores it: its recipe and its packed tensors.

    Attributes:
        recipe: Its key is the name that it is stored under; its codec says what `tensors` are.
        shape: Of the KV that it unpacks to; the device is that of `tensors`, the host.
        tensors: By name, contiguous, on the host. Those that a tier returns may be mapped from a file. They stay valid
            after the encoding was deleted, and must not be changed.
        facts: What else is kept with it, as text, such as the loss of its codec that was measured when it was packed.
    """

    recipe: Recipe
    shape: KVShape
    tensors: Mapping[str, torch.Tensor] = field(repr=False)
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


class BlobTier(ABC):
    """Stored encodings by key. Every method may be called from any thread, and by several processes at once.

    Every method but `claim` may raise `TierUnavailable`: the place does not answer in time, cannot be read, is full or
    read-only. Nothing is half done then. Methods with defaults fit a tier that evicts nothing and has no locks.

    Attributes:
        kind: What a lookup says where KV was found.
        max_parallel_reads: How many calls of `read` at once are faster than one after the other.
    """

    kind: Tier
    max_parallel_reads: int = 1

    @abstractmethod
    def read(self, key: str, shape: KVShape | None = None) -> StoredEncoding | None:
        """Return what is stored under `key`; None where nothing is.

        Args:
            shape: That KV must have, on any device; None takes whatever is there.

        Raises:
            CorruptEncoding: What is there is not what the key promises, or has another shape; it was set aside, so
                that the next `read` returns None.
        """

    @abstractmethod
    def write(self, stored: StoredEncoding) -> bool:
        """Store an encoding; what is there already stays.

        Returns:
            Whether it is stored here now; False where it does not fit into the budget beside what is pinned.
        """

    @abstractmethod
    def delete(self, key: str) -> bool:
        """Forget `key`, pinned or not; return whether it was there. Tensors that were read stay valid."""

    @abstractmethod
    def keys(self) -> Iterator[str]:
        """Yield the keys that are there now and that `read` would return, as far as is known."""

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes that the encodings take here, headers included."""

    def pin(self, key: str) -> None:  # noqa: B027 # nothing is evicted
        """Keep `key` from eviction from now on, whether it is there already or comes later."""

    def unpin(self, key: str) -> None:  # noqa: B027
        """Take back `pin`."""

    def pinned(self) -> frozenset[str]:
        """Return the keys that are pinned."""
        return frozenset()

    def claim(self, key: str, timeout_s: float) -> AbstractContextManager[bool]:
        """Be the only one that makes `key` while the context is open.

        Another holder is waited for, `timeout_s` at most; then `read` again: that one may have written it. A claim
        saves work and is never needed for a right answer.

        Yields:
            Whether it is held; False after the time-out, or where this tier has no locks.
        """
        return nullcontext(False)
