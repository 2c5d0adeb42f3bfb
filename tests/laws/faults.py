"""Stores that fail, to test an engine whose KV is lost, damaged, late or refused.

Each shares the tiers of a store and changes one thing for the keys that a rule chooses. A damaged encoding has the right shape and
wrong numbers.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import torch

from promptcache.diagnostics import StoreError
from promptcache.kv import KV, Lookup, Recipe, Store

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
    """A `Store` with the tiers of another one, and a rule that chooses keys."""

    def __init__(self, store: Store, hit: Hit) -> None:
        vars(self).update(vars(store))
        self._hit = hit


class LosingStore(FaultyStore):
    """Loses the keys that are hit: what was put is not found."""

    def get_many(self, keys: Iterable[str]) -> Mapping[str, Lookup]:
        """Return what is there, and nothing for a key that is hit."""
        wanted = tuple(keys)
        for key in filter(self._hit, wanted):
            self.delete(key)
        return super().get_many(wanted)


class CorruptingStore(FaultyStore):
    """Stores wrong numbers of the right shape for the chosen keys."""

    def put(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor) -> KV:
        """Put the KV, or wrong numbers if the key is hit."""
        if self._hit(recipe.key):
            keys, values = keys.flip(2) + 1, values.flip(2) - 1
        return super().put(recipe, keys, values)


class DelayingStore(FaultyStore):
    """Answers late for keys that are hit."""

    def __init__(self, store: Store, hit: Hit, delay_s: float) -> None:
        super().__init__(store, hit)
        self._delay_s = delay_s

    def get_many(self, keys: Iterable[str]) -> Mapping[str, Lookup]:
        """Return what is there, after a delay if a key is hit."""
        wanted = tuple(keys)
        if any(map(self._hit, wanted)):
            time.sleep(self._delay_s)
        return super().get_many(wanted)


class RefusingStore(FaultyStore):
    """Fails for the chosen keys, like a full disk."""

    def put(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor) -> KV:
        """Put, or refuse.

        Raises:
            StoreError: the key is hit.
        """
        if self._hit(recipe.key):
            raise StoreError(f"encoding {recipe.key[:12]} is refused (a planted fault)")
        return super().put(recipe, keys, values)
