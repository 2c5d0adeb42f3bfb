"""Host memory for encodings as their codec stores them, for models on another device. Quantized KV stays quantized."""

from __future__ import annotations

from dataclasses import replace

from promptcache.diagnostics import BYTES, StoreError
from promptcache.kv.codec import StoredEncoding
from promptcache.kv.eviction import GreedyDual
from promptcache.kv.keys import Recipe
from promptcache.locks import new_lock


class HostMemory:
    """Stored encodings by key, within a budget of bytes. All methods are thread-safe."""

    def __init__(self, budget_bytes: int) -> None:
        """Keep nothing yet.

        Raises:
            StoreError: The budget is negative.
        """
        BYTES.check("host_bytes", budget_bytes, StoreError)
        self.budget_bytes = budget_bytes
        self._stored: dict[str, StoredEncoding] = {}
        self._policy = GreedyDual[str]()
        self._lock = new_lock()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.nbytes():,} bytes, at most {self.budget_bytes:,}>"

    def __contains__(self, key: object) -> bool:
        return key in self._stored

    def offer(self, stored: StoredEncoding, cost: float) -> None:
        """Keep a copy of an encoding, unless there is no room for it; `cost` is that of computing it again."""
        key, nbytes = stored.recipe.key, stored.nbytes
        if nbytes > self.budget_bytes:
            return
        copied = replace(stored, tensors={name: each.clone() for name, each in stored.tensors.items()})
        with self._lock:
            if key in self._stored:  # another thread was faster
                return
            victims = self._policy.victims(self._policy.nbytes + nbytes - self.budget_bytes)
            assert victims is not None, "without all others, there is room"
            self._policy.evict(victims)
            for each in victims:
                del self._stored[each]
            self._stored[key] = copied
            self._policy.add(key, nbytes, cost)

    def find(self, key: str) -> StoredEncoding | None:
        """Return an encoding and count a use; None if it is not kept."""
        with self._lock:
            self._policy.touch(key)
            return self._stored.get(key)

    def drop(self, key: str) -> None:
        """Stop to keep the encoding of a key, if there is one."""
        with self._lock:
            if self._policy.remove(key):
                del self._stored[key]

    def recipes(self) -> tuple[Recipe, ...]:
        """Return the recipes of all encodings that are kept."""
        with self._lock:
            return tuple(each.recipe for each in self._stored.values())

    def nbytes(self) -> int:
        """Return the bytes of all encodings that are kept."""
        return self._policy.nbytes
