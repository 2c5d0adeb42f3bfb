"""What a store of encodings is.

Comes in: recipes and KV. Goes out: the same KV, or none. An implementation knows keys, tensors and where it keeps them;
it knows no schemas or models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from promptcache.diagnostics import TEXTS, Kind, StoreError
from promptcache.kv.keys import Recipe
from promptcache.kv.types import RunKV


class Tier(StrEnum):
    """Where KV was found; `MEMORY` is that of the model's device."""

    MEMORY = "memory"
    HOST = "host"
    DISK = "disk"
    REMOTE = "remote"


class Lookup(NamedTuple):
    """What a store has under a key.

    Attributes:
        run: The KV, ready to be linked; None where there is none. The caller may hold it at will and must not change
            it.
        tier: Where it was.
        moved_bytes: Bytes that were copied to have it ready.
        faults: What went wrong on the way, one sentence each: a tier that did not answer, a file that was set aside.
    """

    run: RunKV | None
    tier: Tier = Tier.MEMORY
    moved_bytes: int = 0
    faults: tuple[str, ...] = ()


def checked_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """Return keys that a caller gives.

    Raises:
        StoreError: They are none.
    """
    _KEYS.check("keys", keys, StoreError)
    found = tuple(keys)
    TEXTS.check("keys", found, StoreError)
    return found


_KEYS = Kind("a list of keys", lambda value: isinstance(value, Iterable) and not isinstance(value, str | type))


@runtime_checkable
class Store(Protocol):
    """Encodings by key. Every method may be called from any thread."""

    def get(self, key: str) -> Lookup:
        """Return what is kept under `key`, wherever it is."""

    def put(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor) -> RunKV:
        """Keep the KV of an encoding and return it as the recipe's codec leaves it; what is there already stays.

        Args:
            recipe: Names it; `recipe.key` is what `get` wants.
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


@runtime_checkable
class SharedStore(Store, Protocol):
    """A store that other processes may use, too."""

    def claim(self, key: str, timeout_s: float) -> AbstractContextManager[bool]:
        """Be the only one that makes `key` while the context is open; a courtesy, as `Shelf.claim`."""

    def note(self, facts: Mapping[str, Mapping[str, str]]) -> None:
        """Say what to keep with encodings, by key, when they are written; it is for people, and enters no key."""

    def forget(self, keys: Iterable[str]) -> None:
        """Take back what `reserve` and `note` said of keys that nobody will ask for again; encodings stay."""

    def lacking(self, keys: Iterable[str]) -> Mapping[str, frozenset[str]]:
        """Return which of `keys` each tier that outlives the process does not hold, by its name; empty where all do."""

    def untold(self) -> tuple[str, ...]:
        """Return what went wrong while writing and no lookup has told yet, one sentence each; then it is told."""
