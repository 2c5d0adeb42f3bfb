"""The interface of stores: KV of encodings by key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import NamedTuple

import torch

from promptcache.diagnostics import TEXTS, Kind, StoreError
from promptcache.kv.keys import Recipe
from promptcache.kv.types import KVHandle
from promptcache.locks import new_lock


class Tier(StrEnum):
    """Where KV was found; `MEMORY` is that of the model's device."""

    MEMORY = "memory"
    HOST = "host"
    DISK = "disk"
    REMOTE = "remote"


class Lookup(NamedTuple):
    """What a store has under a key.

    Attributes:
        run: The KV, ready to be linked; None where there is none. The caller may keep it and must not change it.
        tier: Where it was.
        moved_bytes: Bytes that were copied to have it ready.
        faults: What went wrong in this lookup, one sentence each: a tier did not answer, a file was set aside.
    """

    run: KVHandle | None
    tier: Tier = Tier.MEMORY
    moved_bytes: int = 0
    faults: tuple[str, ...] = ()


class Faults:
    """Sentences that say what went wrong, each once, in order; any thread may call any method."""

    def __init__(self, sentences: Iterable[str] = ()) -> None:
        self._sentences = dict.fromkeys(sentences)
        self._lock = new_lock()

    def __bool__(self) -> bool:
        return bool(self._sentences)

    def add(self, *sentences: str) -> None:
        """Add sentences."""
        with self._lock:
            self._sentences.update(dict.fromkeys(sentences))

    def all(self) -> tuple[str, ...]:
        """Return all sentences."""
        with self._lock:
            return tuple(self._sentences)

    def take(self) -> tuple[str, ...]:
        """Return all sentences and forget them."""
        if not self._sentences:
            return ()
        with self._lock:
            taken, self._sentences = tuple(self._sentences), {}
            return taken


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


class Store(ABC):
    """Encodings by key. Every method may be called from any thread.

    A store of your own defines `get`, `put`, `delete`, `keys` and `nbytes`. All other methods have defaults that are
    right for a store which evicts nothing, is used by one process and writes nothing to disk.
    """

    @abstractmethod
    def get(self, key: str) -> Lookup:
        """Return what is kept under `key`, wherever it is."""

    def get_many(self, keys: Iterable[str]) -> Mapping[str, Lookup]:
        """Return what `get` returns for each of `keys`; a store with slow tiers fetches several at once."""
        return {key: self.get(key) for key in dict.fromkeys(keys)}

    @abstractmethod
    def put(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor, *, persist: bool = True) -> KVHandle:
        """Keep the KV of an encoding and return it as the recipe's codec leaves it; what is there already stays.

        Args:
            recipe: Names it; `recipe.key` is what `get` wants.
            keys: `[L, Hkv, T, D]` in position order; not changed and not kept.
            values: As `keys`.
            persist: Write it to all tiers; False keeps it in memory only, where it is lost when it is evicted.
        """

    @abstractmethod
    def delete(self, key: str) -> bool:
        """Forget `key`; return whether it was there. Requests that hold its KV keep it."""

    @abstractmethod
    def keys(self) -> Iterator[str]:
        """Yield the keys that are there now."""

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of all KV that is kept."""

    def lacking(self, keys: Iterable[str]) -> Mapping[str, frozenset[str]]:
        """Return which of `keys` each tier that outlives the process does not hold, by the tier's name.

        Tiers that hold all of them are left out.
        """
        return {}

    def reserve(self, sizes: Sequence[tuple[str, int]]) -> None:  # noqa: B027 # a hint
        """Announce keys, with their numbers of tokens, in the order in which they would best lie. Only a hint."""

    def note(self, facts: Mapping[str, Mapping[str, str]]) -> None:  # noqa: B027
        """Say what to write beside encodings, by key, for people to read; it is part of no key."""

    def forget(self, keys: Iterable[str]) -> None:  # noqa: B027
        """Free the memory of keys that are not needed any more, and what `reserve` and `note` said of them.

        Files stay: others may use them.
        """

    def pin(self, keys: Iterable[str]) -> None:
        """Keep these keys from eviction, whether they are there already or come later.

        Raises:
            StoreError: This store has no pins, or a tier did not answer.
        """
        raise StoreError(f"{type(self).__name__} cannot pin encodings: it has no pin and unpin")

    def unpin(self, keys: Iterable[str]) -> None:
        """Take back `pin`; errors are the same."""
        raise StoreError(f"{type(self).__name__} cannot pin encodings: it has no pin and unpin")

    def claim(self, key: str, timeout_s: float) -> AbstractContextManager[bool]:
        """Be the only process that makes `key` while the context is open; see `BlobTier.claim`.

        Yields:
            Whether the claim is held; a store of one process has none.
        """
        return nullcontext(False)

    def faults(self) -> tuple[str, ...]:
        """Return what went wrong in `put` and `lacking` since the last call, one sentence each."""
        return ()
