"""Stores that fail, to test an engine whose KV is lost, damaged, late or refused.

Each wraps a store and changes one thing for the keys that a rule chooses. A damaged encoding has the right shape and
wrong numbers.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias

import torch

from promptcache.diagnostics import StoreError
from promptcache.kv import KV, KVMemory, Lookup, OnWait, Recipe, Store, Tier, go_on

Hit: TypeAlias = Callable[[str], bool]
"""Whether a key is hit."""


def by_seed(seed: int, share: float) -> Hit:
    """Return a rule that chooses a share of all keys, the same ones every time."""

    def hit(key: str) -> bool:
        digest = hashlib.sha256(f"{seed}:{key}".encode()).digest()
        return int.from_bytes(digest[:8]) < share * 2**64

    return hit


def after(num_calls: int) -> Hit:
    """Return a rule that chooses every key after it was asked `num_calls` times."""
    lock, asked = threading.Lock(), 0

    def hit(key: str) -> bool:
        nonlocal asked
        with lock:
            asked += 1
            return asked > num_calls

    return hit


class FaultyStore(Store):
    """A `Store` that passes every call on to another one."""

    def __init__(self, store: Store, hit: Hit) -> None:
        self._store = store
        self._hit = hit

    @property
    def memory(self) -> KVMemory:
        """As the wrapped store."""
        return self._store.memory

    def get(self, key: str) -> Lookup:
        """As the wrapped store."""
        return self._store.get(key)

    def put(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor, *, persist: bool = True) -> KV:
        """As the wrapped store."""
        return self._store.put(recipe, keys, values, persist=persist)

    def delete(self, key: str) -> None:
        """As the wrapped store."""
        self._store.delete(key)

    def keys(self) -> Iterator[str]:
        """As the wrapped store."""
        return self._store.keys()

    def nbytes(self) -> int:
        """As the wrapped store."""
        return self._store.nbytes()

    def local_bytes(self) -> Mapping[Tier, int]:
        """As the wrapped store."""
        return self._store.local_bytes()

    def lacking(self, keys: Iterable[str]) -> Mapping[str, frozenset[str]]:
        """As the wrapped store."""
        return self._store.lacking(keys)

    def absent(self, keys: Iterable[str]) -> frozenset[str]:
        """As the wrapped store."""
        return self._store.absent(keys)

    def note(self, facts: Mapping[str, Mapping[str, str]]) -> None:
        """As the wrapped store."""
        self._store.note(facts)

    def claim(
        self, keys: Sequence[str], timeout_s: float, on_wait: OnWait = go_on
    ) -> AbstractContextManager[frozenset[str]]:
        """As the wrapped store."""
        return self._store.claim(keys, timeout_s, on_wait)

    def faults(self) -> tuple[str, ...]:
        """As the wrapped store."""
        return self._store.faults()


class LosingStore(FaultyStore):
    """Loses the keys that are hit: what was put is not found."""

    def get(self, key: str) -> Lookup:
        """Return what is there, and nothing for a key that is hit."""
        if self._hit(key):
            self._store.delete(key)
            return Lookup(None)
        return self._store.get(key)


class CorruptingStore(FaultyStore):
    """Stores wrong numbers of the right shape for the chosen keys."""

    def put(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor, *, persist: bool = True) -> KV:
        """Put the KV, or wrong numbers if the key is hit."""
        if self._hit(recipe.key):
            keys, values = keys.flip(2) + 1, values.flip(2) - 1
        return self._store.put(recipe, keys, values, persist=persist)


class DelayingStore(FaultyStore):
    """Answers late for keys that are hit."""

    def __init__(self, store: Store, hit: Hit, delay_s: float) -> None:
        super().__init__(store, hit)
        self._delay_s = delay_s

    def get(self, key: str) -> Lookup:
        """Return what is there, after a delay if the key is hit."""
        if self._hit(key):
            time.sleep(self._delay_s)
        return self._store.get(key)


class RefusingStore(FaultyStore):
    """Fails for the chosen keys, like a full disk."""

    def put(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor, *, persist: bool = True) -> KV:
        """Put, or refuse.

        Raises:
            StoreError: the key is hit.
        """
        if self._hit(recipe.key):
            raise StoreError(f"encoding {recipe.key[:12]} is refused (a planted fault)")
        return self._store.put(recipe, keys, values, persist=persist)
