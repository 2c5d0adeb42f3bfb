"""The memory tier: it owns the KV, in arenas where the runs of a schema lie side by side in layout order.

KV that a request holds is never written over, moved or evicted. All other KV may be moved, so a range of a slab names
KV only while a `KVHandle` for it is alive.

The budget is exact: a store with one has a single slab of that size, made with its first encoding, and everything that
it keeps or that a request still holds of it lies there. KV that finds no room, because what is there is in use or
pinned, is given to its request all the same, in memory that is freed with the request: it is *unmanaged*, and not kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from promptcache.diagnostics import BYTES, FLAG, FUNCTION, TEXT, Kind, StoreError, Unpicklable, instance, whole
from promptcache.kv.codec import as_kept
from promptcache.kv.eviction import Cost, GreedyDual, encoding_cost
from promptcache.kv.keys import Recipe
from promptcache.kv.memory.arena import Block, Place, Range, Reservations
from promptcache.kv.store import Lookup, Store, Tier, checked_keys
from promptcache.kv.types import KVHandle, KVShape, Slab
from promptcache.locks import new_rlock

BLOCK_BYTES = 256 * 2**20

_KINDS: Mapping[str, Kind] = {
    "shape": instance("a KVShape", KVShape),
    "budget_bytes": BYTES | None,
    "block_bytes": BYTES,
    "cost": FUNCTION,
    "tier": instance("a Tier", Tier),
}
_RECIPE = instance("a Recipe", Recipe)
_KV = Kind("a tensor [L, Hkv, T, D]", lambda value: isinstance(value, torch.Tensor) and value.ndim == 4)
_SIZE = whole(0, unit="tokens")
_SIZES = Kind(
    "a list of pairs of a key and its number of tokens",
    lambda value: (
        isinstance(value, Sequence)
        and not isinstance(value, str | bytes)
        and all(isinstance(each, tuple) and len(each) == 2 for each in value)
        and all(TEXT.takes(key) and _SIZE.takes(size) for key, size in value)
    ),
)


class MemoryStore(Unpicklable, Store):
    """A `Store` in this process's memory (or its GPU's), for KV of one shape.

    Attributes:
        shape: Of the KV; its device is where the memory is.
        budget_bytes: Of everything that is kept or that requests hold of it; None is no limit.
        tier: What a lookup says where KV was found.
    """

    _instead = "make one in each process; what processes share is a folder, StoreConfig(folder=…)"

    def __init__(
        self,
        shape: KVShape,
        *,
        budget_bytes: int | None = None,
        block_bytes: int = BLOCK_BYTES,
        cost: Cost = encoding_cost,
        tier: Tier = Tier.MEMORY,
    ) -> None:
        """Start empty; no memory is taken yet.

        Args:
            block_bytes: Of a slab where there is no budget.
            cost: What an encoding costs to make again.

        Raises:
            StoreError: A budget below 0, or one of more memory than there is.
        """
        given = {"shape": shape, "budget_bytes": budget_bytes, "block_bytes": block_bytes, "cost": cost, "tier": tier}
        for name, kind in _KINDS.items():
            kind.check(name, given[name], StoreError)
        if budget_bytes is not None:
            _check_budget(shape, budget_bytes)
        self.shape, self.budget_bytes, self.tier = shape, budget_bytes, tier
        block_tokens = max(1, block_bytes // shape.token_bytes)
        self._blocks: list[Block] = []
        if budget_bytes is not None:
            block_tokens = budget_bytes // shape.token_bytes
            self._blocks.append(Block(shape, block_tokens))
        self._reservations = Reservations(block_tokens)
        self._kept: dict[str, Place] = {}
        self._recipes: dict[str, Recipe] = {}
        self._policy = GreedyDual()
        self._cost = cost
        self._unmanaged: weakref.WeakSet[KVHandle] = weakref.WeakSet()
        self._lock = new_rlock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._kept)} encodings, {self.nbytes():,} bytes>"

    def get(self, key: str) -> Lookup:
        """Return the KV kept under `key`; it stays where it is while the `KVHandle` lives."""
        TEXT.check("key", key, StoreError)
        return self.get_many((key,))[key]

    def get_many(self, keys: Iterable[str]) -> Mapping[str, Lookup]:
        """Return what `get` returns for each of `keys`."""
        chosen = checked_keys(keys)
        with self._lock:
            return {key: self._lookup(key) for key in chosen}

    def put(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor, *, persist: bool = True) -> KVHandle:
        """Copy the KV, as the recipe's codec leaves it, into its reserved place or wherever there is room.

        Nothing here outlives the process, so `persist` changes nothing.

        Raises:
            StoreError: The tensors have another shape than this store's.
        """
        FLAG.check("persist", persist, StoreError)
        self._check(keys, values)
        _RECIPE.check("recipe", recipe, StoreError)
        if (kept := self._kept_run(recipe.key)) is not None:
            return kept
        keys, values = as_kept(recipe, keys, values)
        return self.offer(recipe, keys, values) or self.unmanaged(keys.clone(), values.clone())

    def offer(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor) -> KVHandle | None:
        """As `put`, for KV that its codec has been at already, on any device; None where there is no room for it."""
        self._check(keys, values)
        _RECIPE.check("recipe", recipe, StoreError)
        if (kept := self._kept_run(recipe.key)) is not None:
            return kept
        with self._lock:
            claimed = self._claim(recipe.key, keys.shape[2])
        if claimed is None:
            return None
        place, run = claimed
        run.keys.copy_(keys)  # outside of the lock: no other thread knows this place yet
        run.values.copy_(values)
        return self._keep(recipe, place, run)

    def unmanaged(self, keys: torch.Tensor, values: torch.Tensor) -> KVHandle:
        """Return KV as a request needs it, without keeping it or, where it lies on the device already, copying it."""
        self._check(keys, values)
        slab = Slab(keys=keys.to(self.shape.device), values=values.to(self.shape.device))
        run = KVHandle(slab=slab, start=0, stop=slab.capacity)
        with self._lock:
            self._unmanaged.add(run)
        return run

    def recipe(self, key: str) -> Recipe | None:
        """Return what the KV that is kept under `key` was put with."""
        TEXT.check("key", key, StoreError)
        return self._recipes.get(key)

    def delete(self, key: str) -> bool:
        """Forget `key`, and that it was announced; its memory is free once no request holds it."""
        TEXT.check("key", key, StoreError)
        with self._lock:
            self._reservations.drop(key)
            if key not in self._kept:
                return False
            self._policy.remove(key)
            self._let_go(key)
            return True

    def keys(self) -> Iterator[str]:
        """Yield the keys that are there now."""
        with self._lock:
            kept = tuple(self._kept)
        yield from kept

    def nbytes(self) -> int:
        """Bytes of all KV that is kept."""
        return self._policy.nbytes

    @property
    def held_bytes(self) -> int:
        """Bytes of what is kept, and of what was kept and requests still hold: what the budget limits."""
        with self._lock:
            self._settle()
            return sum(place.range.size for block in self._blocks for place in block.places) * self.shape.token_bytes

    @property
    def unmanaged_bytes(self) -> int:
        """Bytes of KV that found no room and goes with the requests that hold it; no budget limits them."""
        with self._lock:
            return sum(run.nbytes for run in self._unmanaged)

    def reserve(self, sizes: Sequence[tuple[str, int]]) -> None:
        """Give the keys neighbouring places, in order, for as long as the room is not needed for others."""
        _SIZES.check("sizes", sizes, StoreError)
        with self._lock:
            self._reservations.announce([(key, size) for key, size in sizes if key not in self._kept])

    def forget(self, keys: Iterable[str]) -> None:
        """Free the memory of keys that are not needed any more."""
        for key in checked_keys(keys):
            self.delete(key)

    def pin(self, keys: Iterable[str]) -> None:
        """Keep these keys from eviction, whether they are there already or come later."""
        chosen = checked_keys(keys)
        with self._lock:
            self._policy.pin(chosen)

    def unpin(self, keys: Iterable[str]) -> None:
        """Take back `pin`."""
        chosen = checked_keys(keys)
        with self._lock:
            self._policy.unpin(chosen)

    def pinned(self) -> frozenset[str]:
        """Return the keys that are pinned."""
        with self._lock:
            return self._policy.pinned

    def _lookup(self, key: str) -> Lookup:
        place = self._kept.get(key)
        if place is None:
            return Lookup(None, self.tier)
        self._policy.touch(key)
        return Lookup(place.run(), self.tier)

    def _kept_run(self, key: str) -> KVHandle | None:
        with self._lock:
            place = self._kept.get(key)
            return None if place is None else place.run()

    def _keep(self, recipe: Recipe, place: Place, run: KVHandle) -> KVHandle:
        with self._lock:
            if (first := self._kept.get(recipe.key)) is not None:  # another thread was faster
                return first.run()
            place.kept = True
            self._kept[recipe.key] = place
            self._recipes[recipe.key] = recipe
            self._policy.add(recipe.key, run.nbytes, self._cost(recipe))
            return run

    def _let_go(self, key: str) -> None:
        place = self._kept.pop(key)
        del self._recipes[key]
        place.kept = False
        place.block.release(place)
        self._settle()

    def _settle(self) -> None:
        """Free what no request holds any more; without a budget, empty blocks are freed."""
        for block in self._blocks:
            block.settle()
        if self.budget_bytes is None:
            gone = [block for block in self._blocks if not block.places]
            for block in gone:
                self._reservations.forget(block)
                self._blocks.remove(block)

    def _claim(self, key: str, size: int) -> tuple[Place, KVHandle] | None:
        """Return a place of `size` tokens for `key`, or None where there is no room for it."""
        self._settle()
        found = self._reservations.find(key, size, self._blocks) or self._anywhere(size)
        if found is None and self.budget_bytes is None:
            block = Block(self.shape, max(size, self._reservations.wanted(key)))
            self._blocks.append(block)
            found = self._reservations.find(key, size, [block]) or _taken(block, size)
        elif found is None:
            self._reservations.give_up()
            found = self._reservations.find(key, size, self._blocks) or self._make_room(self._blocks[0], size)
        if found is None:
            return None
        block, range_ = found
        return block.claim(range_)

    def _anywhere(self, size: int) -> tuple[Block, Range] | None:
        return next((found for block in self._blocks if (found := _taken(block, size)) is not None), None)

    def _make_room(self, block: Block, size: int) -> tuple[Block, Range] | None:
        victims = block.room(size, (self._kept[key] for key in self._policy.ranked()))
        if victims is None:
            return None
        chosen = set(victims)
        evicted = [key for key, place in self._kept.items() if place in chosen] if chosen else []
        self._policy.evict(evicted)
        for key in evicted:
            self._let_go(key)
        return block, block.gather(size)

    def _check(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        for name, tensor in (("keys", keys), ("values", values)):
            _KV.check(name, tensor, StoreError)
        expected = (self.shape.num_layers, self.shape.num_kv_heads, keys.shape[2], self.shape.head_dim)
        for name, tensor in (("keys", keys), ("values", values)):
            if tuple(tensor.shape) != expected or tensor.dtype != self.shape.dtype:
                raise StoreError(
                    f"{name} are {tuple(tensor.shape)} {tensor.dtype}; this store holds {expected} {self.shape.dtype}"
                )


def _check_budget(shape: KVShape, budget_bytes: int) -> None:
    if shape.device.type == "cpu":  # where memory that nobody writes to costs nothing
        try:
            Slab.empty(shape, budget_bytes // shape.token_bytes)
        except RuntimeError as error:
            raise StoreError(f"a budget of {budget_bytes:,} bytes is more memory than there is") from error


def _taken(block: Block, size: int) -> tuple[Block, Range] | None:
    range_ = block.free.take(size)
    return None if range_ is None else (block, range_)
