"""The memory tier: encodings in the memory of this process or its GPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

import torch

from promptcache.diagnostics import FLAG, FUNCTION, Kind, StoreError, Unpicklable, instance
from promptcache.kv.codec import apply_codec
from promptcache.kv.eviction import Cost, encoding_cost
from promptcache.kv.keys import KEY, Recipe
from promptcache.kv.memory import KVMemory
from promptcache.kv.store import MAX_NOTES, Lookup, Store, Tier, checked_keys
from promptcache.kv.types import KV, KVShape

_TIER = instance("a Tier", Tier)
_RECIPE = instance("a Recipe", Recipe)
_KV = Kind("a tensor [L, Hkv, T, D]", lambda value: isinstance(value, torch.Tensor) and value.ndim == 4)


class MemoryStore(KVMemory, Unpicklable, Store):
    """Store of encodings in memory.

    Attributes:
        tier: Tier that lookups report.
    """

    _instead = "make one in each process; what processes share is a folder, StoreConfig(folder=…)"

    def __init__(
        self,
        shape: KVShape,
        *,
        budget_bytes: int | None = None,
        cost: Cost = encoding_cost,
        tier: Tier = Tier.MEMORY,
    ) -> None:
        """Create an empty store; arguments and errors are also those of `KVMemory`.

        Args:
            shape: Shape of the KV, with the device of the memory.
            budget_bytes: Limit in bytes. None: a quarter of the memory of the device.
            cost: Cost of computing an encoding again.
            tier: Tier that lookups report.
        """
        super().__init__(shape, budget_bytes=budget_bytes)
        FUNCTION.check("cost", cost, StoreError)
        _TIER.check("tier", tier, StoreError)
        self.tier = tier
        self._cost = cost
        self._priorities: dict[str, int] = {}  # by key, in the order of their first note

    @property
    def memory(self) -> KVMemory:
        """This store."""
        return self

    def get(self, key: str) -> Lookup:
        """Look up `key`."""
        KEY.check("key", key, StoreError)
        return self.get_many((key,))[key]

    def get_many(self, keys: Iterable[str]) -> Mapping[str, Lookup]:
        """Look up several keys."""
        return {key: Lookup(self.find(key), self.tier) for key in checked_keys(keys)}

    def put(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor, *, persist: bool = True) -> KV:
        """Keep a copy of KV, as its codec leaves it. Without room, the handle refers to the KV itself.

        `persist` has no effect, because nothing here outlives the process.

        Raises:
            StoreError: The tensors do not have the shape of this store.
        """
        FLAG.check("persist", persist, StoreError)
        self._check(keys, values)
        _RECIPE.check("recipe", recipe, StoreError)
        if (kept := self.find(recipe.key)) is not None:
            return kept
        keys, values = apply_codec(recipe, keys, values)
        return self.offer(recipe, keys, values) or KV(keys=keys, values=values)

    def offer(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor) -> KV | None:
        """Keep a copy of KV, from any device, that its codec has processed already; None if there is no room."""
        self._check(keys, values)
        _RECIPE.check("recipe", recipe, StoreError)
        if (kept := self.find(recipe.key)) is not None:
            return kept
        cost = self._cost(recipe) * self._priorities.get(recipe.key, 1)
        try:
            handle = self.with_room(partial(self.allocate, keys.shape[2], cost))
        except torch.OutOfMemoryError:
            return None
        if handle is None:
            return None
        handle.keys.copy_(keys)
        handle.values.copy_(values)
        return self.keep(recipe.key, handle, cost, recipe=recipe)

    def note(self, facts: Mapping[str, Mapping[str, str]]) -> None:
        """Set facts of encodings: the cost of one that is kept from now on is multiplied by its "priority".

        Facts with a "module" and no priority take that of an earlier version of the schema away.
        """
        for key, more in facts.items():
            if "priority" in more:
                self._priorities[key] = int(more["priority"])
            elif "module" in more:
                self._priorities.pop(key, None)
        while len(self._priorities) > MAX_NOTES:
            del self._priorities[next(iter(self._priorities))]

    def delete(self, key: str) -> None:
        """Delete `key`. Its memory is free when no request uses it."""
        KEY.check("key", key, StoreError)
        self.drop(key)

    def keys(self) -> Iterator[str]:
        """Yield the keys of the encodings that are stored now."""
        yield from (recipe.key for recipe in self.recipes())

    def absent(self, keys: Iterable[str]) -> frozenset[str]:
        """Return those `keys` that are not stored."""
        return frozenset(key for key in checked_keys(keys) if key not in self._entries)

    def _check(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        for name, tensor in (("keys", keys), ("values", values)):
            _KV.check(name, tensor, StoreError)
        expected = (self.shape.num_layers, self.shape.num_kv_heads, keys.shape[2], self.shape.head_dim)
        for name, tensor in (("keys", keys), ("values", values)):
            if tuple(tensor.shape) != expected or tensor.dtype != self.shape.dtype:
                raise StoreError(
                    f"{name} have shape {tuple(tensor.shape)} and dtype {tensor.dtype}; this store holds {expected} in "
                    f"{self.shape.dtype}"
                )
