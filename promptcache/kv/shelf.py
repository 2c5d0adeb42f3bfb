"""What a shelf is: a tier where encodings rest as bytes, on disk or at a remote place.

Comes in: packed tensors with the recipe that names them. Goes out: the same, or none. A shelf knows nothing of arenas
or devices: `kv/codec.py` packs KV to a `Resting` and back, and its `forms(codec, shape, num_tokens)` says by name which
tensors, in which forms, such an encoding rests as. `kv/format.py` holds every file to that before it gives out a
tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from promptcache.kv.keys import Recipe
from promptcache.kv.store import Tier
from promptcache.kv.types import KVShape


class Form(NamedTuple):
    """What one tensor at rest looks like. A codec says which tensors, in which forms, an encoding rests as."""

    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resting:
    """An encoding as it rests: what names it, and its packed tensors.

    Attributes:
        recipe: Its key is the name it rests under; its codec says what `tensors` are.
        shape: Of the KV that it unpacks to; the device is that of `tensors`, the host.
        tensors: By name, contiguous, on the host. Those that a shelf gives out may be mapped from a file: whoever gets
            them may hold them at will, also after the encoding was deleted, and must not change them.
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


@runtime_checkable
class Shelf(Protocol):
    """Encodings at rest, by key. Every method may be called from any thread, and from several processes at once.

    Every method but `claim` and `tier` may raise `TierUnavailable`: the place does not answer in time, cannot be read,
    is full or read-only. Nothing is half done then.
    """

    @property
    def tier(self) -> Tier:
        """What a lookup says where KV was found."""

    def read(self, key: str, shape: KVShape | None = None) -> Resting | None:
        """Return what rests under `key`; None where nothing does.

        Args:
            shape: That KV must have, on any device; None takes whatever is there.

        Raises:
            CorruptEncoding: What is there is not what the key promises, or has another shape; it was set aside, so
                that the next `read` returns None.
        """

    def write(self, resting: Resting) -> bool:
        """Keep an encoding; what is there already stays.

        Returns:
            Whether it rests here now; False where it does not fit into the budget beside what is pinned.
        """

    def delete(self, key: str) -> bool:
        """Forget `key`, pinned or not; return whether it was there. Holders of its tensors keep them."""

    def keys(self) -> Iterator[str]:
        """Yield the keys that are there now and that `read` would return, as far as is known."""

    def nbytes(self) -> int:
        """Bytes that the encodings take here, headers included."""

    def pin(self, key: str) -> None:
        """Keep `key` from eviction from now on, whether it is there already or comes later."""

    def unpin(self, key: str) -> None:
        """Take back `pin`."""

    def pinned(self) -> frozenset[str]:
        """Return the keys that are pinned."""

    def cool(self, key: str) -> None:
        """Let the next `read` of `key` take as long as after a restart of the machine; a hint, for measuring."""

    def claim(self, key: str, timeout_s: float) -> AbstractContextManager[bool]:
        """Be the only one that makes `key` while the context is open.

        Another holder is waited for, `timeout_s` at most; then `read` again: that one may have written it. Claims are a
        courtesy that saves work, never a condition of being right.

        Yields:
            Whether it is held; False after the time-out, or where this shelf knows no locks.
        """
