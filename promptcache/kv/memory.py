"""Memory for KV of encodings, of history and of joined copies, within one budget of bytes; host memory beside it.

Each entry has tensors of its own. The budget limits what the store keeps. A request that refers to a `KV` keeps
its memory allocated after an eviction; such memory does not count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import psutil
import torch

from promptcache.diagnostics import BYTES, StoreError, instance
from promptcache.kv.codec import StoredEncoding
from promptcache.kv.eviction import GreedyDual
from promptcache.kv.keys import Recipe
from promptcache.kv.types import KV, KVShape, room_for
from promptcache.locks import new_lock

_LIMITS_OF_CONTAINERS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

_Held = TypeVar("_Held")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class _Kept(Generic[_Held]):
    """What is kept, its recipe if it is an encoding, and the list that its owner reads after an eviction."""

    held: _Held
    recipe: Recipe | None
    evicted: deque[Any] | None = None


class _Memory(Generic[_Held]):
    """Entries by key within a budget of bytes. All methods are thread-safe."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._entries: dict[Hashable, _Kept[_Held]] = {}
        self._policy = GreedyDual[Hashable]()
        self._lock = new_lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.nbytes():,} bytes, at most {self.budget_bytes:,}>"

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def find(self, key: Hashable) -> _Held | None:
        """Return what is kept under a key and count a use; None if nothing is."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._policy.touch(key)
            return entry.held

    def drop(self, key: Hashable) -> None:
        """Stop to keep the entry of a key, if there is one."""
        with self._lock:
            if self._policy.remove(key):
                self._forget(key)

    def clear(self) -> None:
        """Stop to keep all entries."""
        for key in tuple(self._entries):
            self.drop(key)

    def recipes(self) -> tuple[Recipe, ...]:
        """Return the recipes of all encodings that are kept."""
        with self._lock:
            return tuple(each.recipe for each in self._entries.values() if each.recipe is not None)

    def nbytes(self) -> int:
        """Return the bytes of all that is kept."""
        return self._policy.nbytes

    def _make_room(self, nbytes: int, cost: float, uses: int | None = None) -> bool:
        """Evict entries so that a new one fits; evict none and return False if they do not suffice."""
        if nbytes > self.budget_bytes:
            return False
        limit = None if uses is None else self._policy.priority(nbytes, cost, uses)
        victims = self._policy.victims(self._policy.nbytes + nbytes - self.budget_bytes, limit)
        if victims is None:
            return False
        self._evict(victims)
        return True

    def _evict(self, keys: Iterable[Hashable]) -> None:
        self._policy.evict(keys)
        for key in keys:
            self._forget(key)

    def _forget(self, key: Hashable) -> None:
        evicted = self._entries.pop(key).evicted
        if evicted is not None:
            evicted.append(key)


class HostMemory(_Memory[StoredEncoding]):
    """Host memory for encodings as their codec stores them, for models on another device.

    Quantized KV stays quantized. All methods are thread-safe.
    """

    def offer(self, stored: StoredEncoding, cost: float) -> None:
        """Keep a copy of an encoding, unless there is no room for it; `cost` is that of computing it again."""
        key, nbytes = stored.recipe.key, stored.nbytes
        if nbytes > self.budget_bytes:
            return
        copied = replace(stored, tensors={name: each.clone() for name, each in stored.tensors.items()})
        with self._lock:
            if key not in self._entries and self._make_room(nbytes, cost):  # no other thread was faster
                self._entries[key] = _Kept(copied, stored.recipe)
                self._policy.add(key, nbytes, cost)


class KVMemory(_Memory[KV]):
    """KV of one shape in the memory of this process or its GPU, by key. All methods are thread-safe.

    Encodings are under their keys (`Store`). History and joined copies are under keys of their owners.

    Attributes:
        shape: Shape of the KV, with the device of the memory.
        budget_bytes: Limit of all KV that is kept.
    """

    def __init__(self, shape: KVShape, *, budget_bytes: int | None = None) -> None:
        """Keep nothing, and allocate no memory yet.

        Args:
            shape: Shape of the KV, with the device of the memory.
            budget_bytes: Limit in bytes. None: a quarter of the memory of the device. For a CPU, the limit of a
                container counts.

        Raises:
            StoreError: The budget is negative.
        """
        instance("a KVShape", KVShape).check("shape", shape, StoreError)
        (BYTES | None).check("budget_bytes", budget_bytes, StoreError)
        self.shape = shape
        if budget_bytes is None and shape.device.type == "cuda":
            budget_bytes = int(torch.cuda.get_device_properties(shape.device).total_memory) // 4
        elif budget_bytes is None:
            total = psutil.virtual_memory().total
            for path in _LIMITS_OF_CONTAINERS:
                with suppress(OSError, ValueError):  # there is no such file, or it says "max"
                    total = min(total, int(Path(path).read_text()))
            budget_bytes = total // 4
        super().__init__(budget_bytes)

    def bytes_for(self, num_tokens: int) -> int:
        """Return the bytes of the memory that `allocate` takes for some tokens."""
        return room_for(self.shape, num_tokens) * self.shape.token_bytes

    def allocate(self, num_tokens: int, cost: float, uses: int | None = None) -> KV | None:
        """Return memory for an entry that its owner fills and gives to `keep`; None if there is no room for it.

        Args:
            num_tokens: Number of tokens.
            cost: Cost of computing the entry again, in the unit of `cost_at`.
            uses: How often the entry was wanted. If given, entries that are worth more make no room. Otherwise any
                entry does.

        Raises:
            torch.OutOfMemoryError: The budget has room, and the device has no memory.
        """
        with self._lock:
            if not self._make_room(self.bytes_for(num_tokens), cost, uses):
                return None
        return KV.empty(self.shape, num_tokens)

    def keep(
        self,
        key: Hashable,
        kv: KV,
        cost: float,
        *,
        uses: int | None = None,
        recipe: Recipe | None = None,
        evicted: deque[Any] | None = None,
    ) -> KV | None:
        """Keep an entry; return the KV that is kept under its key now, which may be there already; None without room.

        Args:
            key: Key of the owner. Keys of encodings are texts.
            kv: KV in memory from `allocate`.
            cost, uses: As for `allocate`.
            recipe: The recipe of an encoding.
            evicted: The key is appended when the entry is no longer kept.
        """
        nbytes = self.bytes_for(kv.num_tokens)
        with self._lock:
            if (first := self._entries.get(key)) is not None:  # another thread was faster
                return first.held
            if not self._make_room(nbytes, cost, uses):
                return None
            self._entries[key] = _Kept(kv, recipe, evicted)
            self._policy.add(key, nbytes, cost, uses or 1)
            return kv

    def offer(self, recipe: Recipe, keys: torch.Tensor, values: torch.Tensor, cost: float) -> KV | None:
        """Keep a copy of the KV of an encoding, from any device, under its key; None if there is no room.

        Args:
            recipe: Identity of the encoding.
            keys, values: `[L, Hkv, T, D]`, as the codec leaves them.
            cost: As for `allocate`.
        """
        if (kept := self.find(recipe.key)) is not None:
            return kept
        try:
            kv = self.with_room(partial(self.allocate, keys.shape[2], cost))
        except torch.OutOfMemoryError:
            return None
        if kv is None:
            return None
        kv.keys.copy_(keys)
        kv.values.copy_(values)
        return self.keep(recipe.key, kv, cost, recipe=recipe)

    def with_room(self, run: Callable[[], _Result]) -> _Result:
        """Run a function; as long as the device has no memory for it, evict half of the entries and run it again.

        Raises:
            torch.OutOfMemoryError: The device has no memory for it beside what running requests use.
        """
        while self._entries:
            with suppress(torch.OutOfMemoryError):
                return run()
            with self._lock:
                self._evict(self._policy.victims(-(-self._policy.nbytes // 2)) or ())
        return run()
