"""Stores that fail, to test an engine whose KV is lost or refused: for the keys that a rule chooses."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import torch

from promptcache.diagnostics import StoreError
from promptcache.kv import KV, Lookup, Recipe, Store

Hit: TypeAlias = Callable[[str], bool]
"""Whether a key is hit."""


def always(_: str) -> bool:
    return True


class FaultyStore(Store):
    """A `Store` with the tiers of another one, and a rule that chooses keys."""

    def __init__(self, store: Store, hit: Hit) -> None:
        vars(self).update(vars(store))
        self._hit = hit


class LosingStore(FaultyStore):
    """Loses the keys that are hit: what was put is not found."""

    def get_many(self, keys: Iterable[str]) -> Mapping[str, Lookup]:
        wanted = tuple(keys)
        for key in filter(self._hit, wanted):
            self.delete(key)
        return super().get_many(wanted)


class RefusingStore(FaultyStore):
    """Fails for the chosen keys, like a full disk."""

    def put(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor) -> KV:
        if self._hit(recipe.key):
            raise StoreError(f"encoding {recipe.key[:12]} is refused (a planted fault)")
        return super().put(recipe, keys, values)
