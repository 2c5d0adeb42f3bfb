"""The interface of stores: KV of encodings by key.

`MemoryStore` and `TieredStore` implement `Store`. To keep KV in a place of your own, implement a `BlobTier`. A fault in
a store never costs an answer: it is collected in `FaultLog`, and the encoding is computed again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import NamedTuple, TypeAlias

import torch

from promptcache.diagnostics import Kind, StoreError
from promptcache.kv.keys import KEY, Recipe
from promptcache.kv.memory import KVMemory
from promptcache.kv.types import KV
from promptcache.locks import new_lock

MAX_NOTES = 1 << 16
"""Maximum number of keys with facts, about 300 bytes each. The earliest ones are forgotten."""


class Tier(StrEnum):
    """Level of the cache hierarchy. `MEMORY` is the memory of the model's device."""

    MEMORY = "memory"
    HOST = "host"
    DISK = "disk"
    REMOTE = "remote"


class Lookup(NamedTuple):
    """Result of looking up one key.

    Attributes:
        handle: The KV, ready to be linked, or None for a cache miss. Callers may keep it and must not change it.
        tier: Where the KV was found.
        moved_bytes: Bytes copied between tiers for this lookup.
        faults: Faults in this lookup, one sentence each, such as a tier that did not answer.
    """

    handle: KV | None
    tier: Tier = Tier.MEMORY
    moved_bytes: int = 0
    faults: tuple[str, ...] = ()


class FaultLog:
    """Sentences about faults, without duplicates, in order. Thread-safe."""

    def __init__(self) -> None:
        self._sentences: dict[str, None] = {}
        self._lock = new_lock()

    def add(self, *sentences: str) -> None:
        """Add sentences."""
        with self._lock:
            self._sentences.update(dict.fromkeys(sentences))

    def all(self) -> tuple[str, ...]:
        """Return all sentences."""
        with self._lock:
            return tuple(self._sentences)

    def take(self) -> tuple[str, ...]:
        """Return all sentences and remove them."""
        if not self._sentences:
            return ()
        with self._lock:
            taken, self._sentences = tuple(self._sentences), {}
            return taken


_KEYS = Kind(
    "a list of keys, 64 hexadecimal digits each,",
    lambda value: isinstance(value, tuple) and all(map(KEY.takes, value)),
)


def checked_keys(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the keys that a caller passed, as a tuple.

    Raises:
        StoreError: `keys` is not iterable, or one of them is not a key.
    """
    listed = tuple(keys) if isinstance(keys, Iterable) and not isinstance(keys, str | type) else keys
    _KEYS.check("keys", listed, StoreError)
    return tuple(listed)


OnWait: TypeAlias = Callable[[], None]
"""Called at least once a second while a claim waits. If it raises, the wait ends."""


def go_on() -> None:
    """Keep waiting."""


class Store(ABC):
    """Encodings by key. Thread-safe. The defaults are those of a store that belongs to one process."""

    @property
    @abstractmethod
    def memory(self) -> KVMemory:
        """The memory on the model's device. History and joined copies are kept there, too."""

    @abstractmethod
    def get(self, key: str) -> Lookup:
        """Look up `key` in all tiers."""

    def get_many(self, keys: Iterable[str]) -> Mapping[str, Lookup]:
        """Look up several keys. A store with slow tiers fetches them in parallel."""
        return {key: self.get(key) for key in dict.fromkeys(keys)}

    @abstractmethod
    def put(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor, *, persist: bool = True) -> KV:
        """Store the KV of an encoding and return it as its codec leaves it. KV that is stored already stays.

        Args:
            recipe: Identity of the encoding. `recipe.key` is the key for `get`.
            keys: `[L, Hkv, T, D]` in position order. The store copies what it keeps, and changes nothing.
            values: Same shape as `keys`.
            persist: Whether to write to all tiers. False stores in memory only; eviction then loses the KV.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete `key`, if it is stored. Requests that use its KV keep it."""

    @abstractmethod
    def keys(self) -> Iterator[str]:
        """Yield the keys that are stored now."""

    @abstractmethod
    def nbytes(self) -> int:
        """Return the bytes of all stored KV."""

    def local_bytes(self) -> Mapping[Tier, int]:
        """Return the bytes of stored KV in each tier, without tiers that are asked over a network."""
        return {Tier.MEMORY: self.nbytes()}

    def lacking(self, keys: Iterable[str]) -> Mapping[str, frozenset[str]]:
        """Return the `keys` that each persistent tier does not hold, by the name of the tier.

        Tiers that hold all of them are left out.
        """
        return {}

    def absent(self, keys: Iterable[str]) -> frozenset[str]:
        """Return those `keys` whose KV is not in memory. A service fetches it in another thread."""
        return frozenset()

    def note(self, facts: Mapping[str, Mapping[str, str]]) -> None:  # noqa: B027
        """Set facts of encodings by key: "priority" is a factor of their cost, the others inform people."""

    def claim(
        self, keys: Sequence[str], timeout_s: float, on_wait: OnWait = go_on
    ) -> AbstractContextManager[frozenset[str]]:
        """Return a context in which no other process with the same folder computes the keys that it yields.

        Entering it locks all keys that no other process computes now. If there are none, it waits for the first key,
        at most `timeout_s`, and calls `on_wait` meanwhile. Look the keys up again afterwards, because another process
        may have stored them. Claims only save work; answers are correct without them.
        """
        return nullcontext(frozenset(keys))

    def probe(self) -> None:  # noqa: B027 # memory can always be written
        """Check that all folders and URLs of the store can be written now; nothing is left behind.

        Raises:
            TierUnavailable: One of them cannot.
        """

    def faults(self) -> tuple[str, ...]:
        """Return the faults in `put` and `lacking` since the last call, one sentence each."""
        return ()
