"""The memory tier: it owns the KV, in arenas where the runs of a schema lie side by side in layout order.

Comes in: KV to keep, and the order in which runs would best be neighbours. Goes out: views. A block of an arena gets
its memory when its first encoding arrives; a range is free again when neither the store nor any request holds its
`RunKV`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence

import torch

from promptcache.diagnostics import StoreError
from promptcache.kv.keys import Recipe
from promptcache.kv.store import Lookup
from promptcache.kv.types import KVShape, RunKV, Slab

BLOCK_BYTES = 256 * 2**20


class Block:
    """Part of an arena: places for some keys, and their memory once the first of them is put."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.slab: Slab | None = None
        self.taken: set[int] = set()  # start of every range that somebody holds

    def claim(self, shape: KVShape, start: int, stop: int) -> RunKV | None:
        """Return the range `[start, stop)`, or None while somebody still holds it."""
        if start in self.taken:
            return None
        self.taken.add(start)  # before the slab is looked at: a finalizer may run between any two lines
        slab = self.slab or Slab.empty(shape, self.capacity)
        self.slab = slab
        run = RunKV(slab=slab, start=start, stop=stop)
        weakref.finalize(run, self._release, start)
        return run

    def _release(self, start: int) -> None:
        self.taken.discard(start)
        if not self.taken:
            self.slab = None


class MemoryStore:
    """A `Store` in this process's memory (or its GPU's), for KV of one shape."""

    def __init__(self, shape: KVShape, *, block_bytes: int = BLOCK_BYTES) -> None:
        self.shape = shape
        self._block_tokens = max(1, block_bytes // shape.token_bytes)
        self._runs: dict[str, RunKV] = {}
        self._places: dict[str, tuple[Block, int, int]] = {}
        self._lock = threading.RLock()

    def get(self, key: str) -> Lookup:
        """Return the KV kept under `key`."""
        return Lookup(self._runs.get(key))

    def put(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor) -> RunKV:
        """Copy the KV into its reserved place, or into a block of its own.

        Raises:
            StoreError: The tensors have another shape than this store's.
        """
        self._check(keys, values)
        num_tokens = keys.shape[2]
        with self._lock:
            if (kept := self._runs.get(recipe.key)) is not None:
                return kept
            run = self._place(recipe.key, num_tokens)
            run.keys.copy_(keys)
            run.values.copy_(values)
            self._runs[recipe.key] = run
            return run

    def delete(self, key: str) -> bool:
        """Forget `key`; its memory is free once no request holds it."""
        with self._lock:
            self._places.pop(key, None)
            return self._runs.pop(key, None) is not None

    def keys(self) -> Iterator[str]:
        """Yield the keys that are there now."""
        yield from tuple(self._runs)

    def nbytes(self) -> int:
        """Bytes of all KV that is kept."""
        with self._lock:
            return sum(run.nbytes for run in self._runs.values())

    def reserve(self, sizes: Sequence[tuple[str, int]]) -> None:
        """Give the keys that have no place yet neighbouring places, in order, block by block."""
        with self._lock:
            block, used = Block(0), 0
            for key, num_tokens in sizes:
                if key in self._places or key in self._runs:
                    continue
                if used + num_tokens > self._block_tokens:
                    block, used = Block(0), 0
                self._places[key] = (block, used, used + num_tokens)
                used += num_tokens
                block.capacity = used

    def _place(self, key: str, num_tokens: int) -> RunKV:
        block, start, stop = self._places.get(key) or (Block(num_tokens), 0, num_tokens)
        run = block.claim(self.shape, start, stop) if stop - start == num_tokens else None
        if run is None:  # the place is still held under an earlier put of this key
            run = Block(num_tokens).claim(self.shape, 0, num_tokens)
        assert run is not None, "a new block is free"
        return run

    def _check(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        expected = (self.shape.num_layers, self.shape.num_kv_heads, keys.shape[2], self.shape.head_dim)
        for name, tensor in (("keys", keys), ("values", values)):
            if tuple(tensor.shape) != expected or tensor.dtype != self.shape.dtype:
                raise StoreError(
                    f"{name} are {tuple(tensor.shape)} {tensor.dtype}; this store holds {expected} {self.shape.dtype}"
                )
