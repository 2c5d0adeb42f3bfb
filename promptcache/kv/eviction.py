"""The eviction policy of every tier: GreedyDual-Size-Frequency.

The priority of a key is `L + frequency * cost / bytes`, computed again at every use. L is the highest priority that was
ever evicted, so keys that are not used age without being touched (Cherkasova, "Improving WWW Proxies Performance with
Greedy-Dual-Size-Frequency Caching Policy", HPL-98-69R1, 1998). One rule differs: a new key is always admitted. In the
paper it may lose against stored keys, and then a popular old workload can lock out a new one.

This is bookkeeping only, without a clock, files, tensors or locks.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from promptcache.kv.keys import Recipe

CONTEXT_FREE_TOKENS = 4096
"""Number of attended tokens at which attention costs as much as the rest of a layer: about six times the width of the
model (12 width² multiplications for each token in projections and MLP, 2 width for each attended token)."""

Cost: TypeAlias = Callable[[Recipe], float]
"""Cost of computing an encoding again, in any unit, above 0."""


def encoding_cost(recipe: Recipe) -> float:
    """Return the cost of an encoding in token equivalents. Tokens at higher positions cost more."""
    return cost_at(recipe.num_tokens, recipe.last_position)


def cost_at(num_tokens: int, last_position: int) -> float:
    """Return `encoding_cost` of an encoding of this many tokens that ends at this position."""
    return num_tokens * (1 + last_position / CONTEXT_FREE_TOKENS)


@dataclass(slots=True)
class _Entry:
    nbytes: int
    cost: float
    frequency: int
    priority: float
    used: int  # number of the latest use; unique among entries
    queued: int  # value of `used` in the queue


class GreedyDual:
    """Keys by priority. Not thread-safe.

    The queue holds each key once, with a priority that may be out of date. Uses only raise priorities, so the priority
    in the queue is a lower bound. A use costs one dict access; the search for victims brings the queue up to date.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._level = 0.0
        self._uses = 0
        self._entries: dict[str, _Entry] = {}
        self._queue: list[tuple[float, int, str]] = []

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: str, nbytes: int, cost: float) -> None:
        """Add a new key, used once."""
        assert key not in self._entries, "a key is added once"
        assert nbytes > 0, "an entry has bytes"
        self._uses += 1
        entry = _Entry(nbytes, cost, 1, self._level + cost / nbytes, self._uses, self._uses)
        self._entries[key] = entry
        self.nbytes += nbytes
        heapq.heappush(self._queue, (entry.priority, entry.queued, key))

    def touch(self, key: str) -> None:
        """Record a use of a key. An unknown key is ignored."""
        entry = self._entries.get(key)
        if entry is None:
            return
        self._uses += 1
        entry.frequency += 1
        entry.priority = self._level + entry.frequency * entry.cost / entry.nbytes
        entry.used = self._uses

    def remove(self, key: str) -> bool:
        """Remove a key that was deleted, without aging the others. Return whether it was known."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self.nbytes -= entry.nbytes
        if len(self._queue) > 2 * len(self._entries) + 64:
            self._queue = [(each.priority, each.used, name) for name, each in self._entries.items()]
            for each in self._entries.values():
                each.queued = each.used
            heapq.heapify(self._queue)
        return True

    def evict(self, keys: Iterable[str]) -> None:
        """Remove keys that were evicted. The others age."""
        for key in keys:
            self._level = max(self._level, self._entries[key].priority)
            self.remove(key)

    def victims(self, needed_bytes: int) -> tuple[str, ...] | None:
        """Return the keys to evict to free `needed_bytes`, lowest priority first.

        Returns:
            None if all keys do not suffice. Then no key should be evicted.
        """
        chosen: list[str] = []
        for key in self.ranked():
            if needed_bytes <= 0:
                break
            chosen.append(key)
            needed_bytes -= self._entries[key].nbytes
        return tuple(chosen) if needed_bytes <= 0 else None

    def ranked(self) -> Iterator[str]:
        """Yield all keys, lowest priority first, then least recently used first.

        Do not add, touch or remove keys before the iterator is closed or exhausted.
        """
        seen: list[tuple[float, int, str]] = []
        try:
            while self._queue:
                priority, queued, key = heapq.heappop(self._queue)
                entry = self._entries.get(key)
                if entry is None or entry.queued != queued:
                    continue  # a removed key
                if entry.used != queued:
                    entry.queued = entry.used
                    heapq.heappush(self._queue, (entry.priority, entry.used, key))
                    continue
                seen.append((priority, queued, key))
                yield key
        finally:
            for item in seen:
                heapq.heappush(self._queue, item)
