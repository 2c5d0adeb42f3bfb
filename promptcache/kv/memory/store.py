"""The memory tier: a store that owns KV in arenas, with the runs of a schema side by side in layout order.

KV that a request uses is never overwritten, moved or evicted. All other KV may be moved, so a range of a slab names KV
only while a `KVHandle` for it is alive.

A store with a budget has one slab of exactly that size, allocated with the first encoding. It holds everything that the
store keeps and that requests still use of it. KV that does not fit is *unmanaged*: separate memory that only its
request holds.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import torch

from promptcache.diagnostics import BYTES, FLAG, FUNCTION, Kind, StoreError, Unpicklable, instance, whole
from promptcache.kv.codec import apply_codec
from promptcache.kv.eviction import Cost, GreedyDual, encoding_cost
from promptcache.kv.keys import KEY, Recipe
from promptcache.kv.memory.arena import Allocation, Block, Range, Reservations
from promptcache.kv.memory.buffers import Buffers
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
    "a list of pairs of a key, 64 hexadecimal digits, and its number of tokens",
    lambda value: (
        isinstance(value, Sequence)
        and not isinstance(value, str | bytes)
        and all(isinstance(each, tuple) and len(each) == 2 for each in value)
        and all(KEY.takes(key) and _SIZE.takes(size) for key, size in value)
    ),
)


class MemoryStore(Unpicklable, Store):
    """Store in the memory of this process or its GPU, for KV of one shape.

    Attributes:
        shape: Shape of the KV, with the device of the memory.
        budget_bytes: Limit for all KV that the store keeps or that requests still use of it. None: no limit.
        tier: Tier that lookups report.
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
        """Create an empty store, which allocates no memory yet.

        Args:
            shape: Shape of the KV, with the device of the memory.
            budget_bytes: Limit in bytes. None: no limit.
            block_bytes: Size of a slab without a budget.
            cost: Cost of computing an encoding again.
            tier: Tier that lookups report.

        Raises:
            StoreError: The budget is negative, or larger than the memory.
        """
        given = {"shape": shape, "budget_bytes": budget_bytes, "block_bytes": block_bytes, "cost": cost, "tier": tier}
        for name, kind in _KINDS.items():
            kind.check(name, given[name], StoreError)
        if budget_bytes is not None:
            _check_budget(shape, budget_bytes)
        self.shape, self.budget_bytes, self.tier = shape, budget_bytes, tier
        block_tokens = max(1, block_bytes // shape.token_bytes)
        self._blocks: list[Block] = []
        self._buffer_blocks: list[Block] = []  # without a budget, buffers keep no block of encodings alive
        if budget_bytes is not None:
            block_tokens = budget_bytes // shape.token_bytes
            self._blocks.append(Block(shape, block_tokens))
        self._reservations = Reservations(block_tokens)
        self._kept: dict[str, Allocation] = {}
        self._recipes: dict[str, Recipe] = {}
        self._policy = GreedyDual()
        self._cost = cost
        self._unmanaged: weakref.WeakSet[KVHandle] = weakref.WeakSet()
        self._buffers: weakref.WeakSet[Buffers] = weakref.WeakSet()
        self._lock = new_rlock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._kept)} encodings, {self.nbytes():,} bytes>"

    def __contains__(self, key: object) -> bool:
        """Whether KV is stored under `key` now. It does not count as a use."""
        return key in self._kept

    def get(self, key: str) -> Lookup:
        """Look up `key`. The KV is not moved while the `KVHandle` is alive."""
        KEY.check("key", key, StoreError)
        return self.get_many((key,))[key]

    def get_many(self, keys: Iterable[str]) -> Mapping[str, Lookup]:
        """Look up several keys."""
        chosen = checked_keys(keys)
        with self._lock:
            return {key: self._lookup(key) for key in chosen}

    def put(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor, *, persist: bool = True) -> KVHandle:
        """Copy KV, as its codec leaves it, to its reserved range or to any free one.

        `persist` has no effect, because nothing here outlives the process.

        Raises:
            StoreError: The tensors do not have the shape of this store.
        """
        FLAG.check("persist", persist, StoreError)
        self._check(keys, values)
        _RECIPE.check("recipe", recipe, StoreError)
        if (kept := self._kept_handle(recipe.key)) is not None:
            return kept
        keys, values = apply_codec(recipe, keys, values)
        return self.offer(recipe, keys, values) or self.unmanaged(keys.clone(), values.clone())

    def offer(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor) -> KVHandle | None:
        """Copy KV, from any device, that its codec has processed already. Return None if there is no room for it."""
        self._check(keys, values)
        _RECIPE.check("recipe", recipe, StoreError)
        if (kept := self._kept_handle(recipe.key)) is not None:
            return kept
        with self._lock:
            allocated = self._allocate(recipe.key, keys.shape[2])
        if allocated is None:
            return None
        allocation, handle = allocated
        handle.keys.copy_(keys)  # without the lock: no other thread has this allocation yet
        handle.values.copy_(values)
        return self._keep(recipe, allocation, handle)

    def unmanaged(self, keys: torch.Tensor, values: torch.Tensor) -> KVHandle:
        """Return a handle of KV that the store does not keep. KV on the store's device is not copied."""
        self._check(keys, values)
        slab = Slab(keys=keys.to(self.shape.device), values=values.to(self.shape.device))
        handle = KVHandle(slab=slab, start=0, stop=slab.capacity)
        with self._lock:
            self._unmanaged.add(handle)
        return handle

    def buffers(self, limit_bytes: int) -> Buffers:
        """Return a new set of buffers in this store, with a limit of its own. The budget limits them, too."""
        BYTES.check("limit_bytes", limit_bytes, StoreError)
        made = Buffers(
            self.shape,
            limit_bytes,
            self._lock,
            self._buffer_victims,
            self._allocate_buffer,
            self._drop_idle_buffers,
            has_classes=self._has_own_blocks,
        )
        self._buffers.add(made)
        return made

    def recipe(self, key: str) -> Recipe | None:
        """Return the recipe of the KV stored under `key`."""
        KEY.check("key", key, StoreError)
        return self._recipes.get(key)

    def delete(self, key: str) -> None:
        """Delete `key` and its reservation. Its memory is free when no request uses it."""
        KEY.check("key", key, StoreError)
        with self._lock:
            self._reservations.cancel(key)
            if key in self._kept:
                self._policy.remove(key)
                self._drop(key)

    def keys(self) -> Iterator[str]:
        """Yield the keys that are stored now."""
        with self._lock:
            kept = tuple(self._kept)
        yield from kept

    def nbytes(self) -> int:
        """Return the bytes of all stored KV."""
        return self._policy.nbytes

    @property
    def allocated_bytes(self) -> int:
        """Bytes of KV that is kept, or was kept and is still in use. The budget limits them."""
        with self._lock:
            self._collect()
            blocks = chain(self._blocks, self._buffer_blocks)
            return sum(each.range.size for block in blocks for each in block.allocations) * self.shape.token_bytes

    @property
    def unmanaged_bytes(self) -> int:
        """Bytes of unmanaged KV in use. No budget limits them."""
        with self._lock:
            return sum(handle.nbytes for handle in self._unmanaged)

    def absent(self, keys: Iterable[str]) -> frozenset[str]:
        """Return those `keys` that are not stored."""
        return frozenset(checked_keys(keys)).difference(self._kept)

    def reserve(self, sizes: Sequence[tuple[str, int]]) -> None:
        """Reserve adjacent ranges for keys, in order, until other encodings or buffers need the room."""
        _SIZES.check("sizes", sizes, StoreError)
        with self._lock:
            self._reservations.announce([(key, size) for key, size in sizes if key not in self._kept])

    def forget(self, keys: Iterable[str]) -> None:
        """Free the memory of keys that are not needed any more."""
        for key in checked_keys(keys):
            self.delete(key)

    def _lookup(self, key: str) -> Lookup:
        allocation = self._kept.get(key)
        if allocation is None:
            return Lookup(None, self.tier)
        self._policy.touch(key)
        return Lookup(allocation.handle(), self.tier)

    def _kept_handle(self, key: str) -> KVHandle | None:
        with self._lock:
            allocation = self._kept.get(key)
            return None if allocation is None else allocation.handle()

    def _keep(self, recipe: Recipe, allocation: Allocation, handle: KVHandle) -> KVHandle:
        with self._lock:
            if (first := self._kept.get(recipe.key)) is not None:  # another thread was faster
                return first.handle()
            allocation.kept = True
            self._kept[recipe.key] = allocation
            self._recipes[recipe.key] = recipe
            self._policy.add(recipe.key, handle.nbytes, self._cost(recipe))
            return handle

    def _drop(self, key: str) -> None:
        allocation = self._kept.pop(key)
        del self._recipes[key]
        allocation.kept = False
        allocation.block.release(allocation)
        self._collect()

    def _collect(self) -> None:
        """Free allocations that no request uses any more and, without a budget, empty blocks."""
        for block in chain(self._blocks, self._buffer_blocks):
            block.collect()
        if self.budget_bytes is None:
            for block in [each for each in self._blocks if not each.allocations]:
                self._reservations.remove_block(block)
                self._blocks.remove(block)
                block.free_memory()
            for block in [each for each in self._buffer_blocks if not each.allocations]:
                self._buffer_blocks.remove(block)
                block.free_memory()

    def _allocate(self, key: str, size: int) -> tuple[Allocation, KVHandle] | None:
        """Allocate `size` tokens for `key`, evicting others if needed. Return None if there is no room."""
        self._collect()
        found = self._reservations.take(key, size, self._blocks) or _take_from(self._blocks, size)
        if found is None and self.budget_bytes is None:
            block = self._new_block(max(size, self._reservations.unplaced_tokens(key)))
            self._blocks.append(block)
            found = self._reservations.take(key, size, [block]) or _take(block, size)
        elif found is None:
            self._reservations.give_up()
            found = self._reservations.take(key, size, self._blocks) or self._make_room(self._blocks[0], size)
        if found is None:
            return None
        block, range_ = found
        return block.allocate(range_)

    def _buffer_victims(self, size: int, buffers: Iterable[Allocation]) -> Sequence[Allocation] | None:
        """Return the buffers to drop to get `size` tokens that can be made adjacent; None if that is impossible."""
        self._collect()
        if self.budget_bytes is None or any(each.size >= size for each in self._blocks[0].free):
            return ()
        self._reservations.give_up()  # reserved ranges cannot be moved
        return self._blocks[0].victims(size, buffers)

    def _allocate_buffer(self, size: int) -> tuple[Allocation, KVHandle]:
        """Allocate `size` tokens after the victims are dropped."""
        if self.budget_bytes is not None:
            self._collect()
            return self._blocks[0].allocate(self._blocks[0].compact(size))
        if self._has_own_blocks:
            self._collect()  # first: the allocator of the device reuses their memory
        for each in self._buffer_blocks:
            each.collect()
        found = _take_from(self._buffer_blocks, size)
        if found is None:
            block = self._new_block(size)
            self._buffer_blocks.append(block)
            found = block, block.compact(size)
        made = found[0].allocate(found[1])
        self._collect()  # empty blocks are freed last: memory that was written before is faster than fresh memory
        return made

    @property
    def _has_own_blocks(self) -> bool:
        """Whether each buffer is a block of its own. The allocator of a GPU reuses memory of sizes that repeat."""
        return self.budget_bytes is None and self.shape.is_on_gpu

    def _new_block(self, size: int) -> Block:
        """Return a block with memory. If the device has none, buffers that are not in use make room, oldest first.

        Raises:
            torch.OutOfMemoryError: They do not suffice.
        """
        block = Block(self.shape, size)
        while True:
            try:
                block.memory()
            except torch.OutOfMemoryError:
                if not self._drop_idle_buffer():
                    raise
            else:
                return block

    def _drop_idle_buffer(self) -> bool:
        """Free the least recently used buffer of an owner that is not in use; return whether there was one."""
        for buffers in self._buffers:
            for each in buffers:
                if not each.in_use:
                    buffers.drop(each)
                    self._collect()
                    return True
        return False

    def _drop_idle_buffers(self) -> bool:
        """Free the buffers that are not in use; return whether that freed memory. A budget is allocated for good."""
        if self.budget_bytes is not None:
            return False
        was_freed = False
        with self._lock:
            while self._drop_idle_buffer():
                was_freed = True
        return was_freed

    def _make_room(self, block: Block, size: int) -> tuple[Block, Range] | None:
        """Evict buffers first, then encodings."""
        ranked = (self._kept[key] for key in self._policy.ranked())
        victims = block.victims(size, chain(*self._buffers, ranked))
        if victims is None:
            return None
        chosen = set(victims)
        for buffers in self._buffers:
            for buffer in chosen.intersection(buffers):
                buffers.drop(buffer)
        evicted = [key for key, allocation in self._kept.items() if allocation in chosen] if chosen else []
        self._policy.evict(evicted)
        for key in evicted:
            self._drop(key)
        return block, block.compact(size)

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


def _check_budget(shape: KVShape, budget_bytes: int) -> None:
    if shape.device.type == "cpu":  # there, memory that is never written costs nothing
        try:
            Slab.empty(shape, budget_bytes // shape.token_bytes)
        except RuntimeError as error:
            raise StoreError(f"a budget of {budget_bytes:,} bytes is more memory than there is; give less") from error


def _take_from(blocks: Iterable[Block], size: int) -> tuple[Block, Range] | None:
    """Take a range from the first block that has one."""
    return next((found for block in blocks if (found := _take(block, size)) is not None), None)


def _take(block: Block, size: int) -> tuple[Block, Range] | None:
    range_ = block.free.take(size)
    return None if range_ is None else (block, range_)
