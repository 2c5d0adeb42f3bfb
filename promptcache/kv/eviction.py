"""The eviction policy of every tier: GreedyDual-Size-Frequency.

The priority of a key is `L + frequency * cost / bytes`, computed again at every use. L is the highest priority that was
ever evicted, so keys that are not used age without being touched (Cherkasova, "Improving WWW Proxies Performance with
Greedy-Dual-Size-Frequency Caching Policy", HPL-98-69R1, 1998). One rule differs: a new key is always admitted. In the
paper it may lose against stored keys, and then a popular old workload can lock out a new one. A caller that wants the
rule of the paper passes `limit`.

This is bookkeeping only, without a clock, files, tensors or locks.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)

CONTEXT_FREE_TOKENS = 4096
"""Number of attended tokens at which attention costs as much as the rest of a layer: about six times the width of the
model (12 width² multiplications for each token in projections and MLP, 2 width for each attended token)."""


def cost_at(num_tokens: int, last_position: int) -> float:
    """Return the cost of computing tokens that end at a position, in token equivalents. Higher positions cost more."""
    return num_tokens * (1 + last_position / CONTEXT_FREE_TOKENS)


@dataclass(slots=True)
class _Entry:
    nbytes: int
    cost: float
    frequency: int
    priority: float
    used: int  # number of the latest use; unique among entries
    queued: int  # value of `used` in the queue


class GreedyDual(Generic[_Key]):
    """Keys by priority. Not thread-safe.

    The queue holds each key once, with a priority that may be out of date. Uses only raise priorities, so the priority
    in the queue is a lower bound. A use costs one dict access; the search for victims brings the queue up to date.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._level = 0.0
        self._uses = 0
        self._entries: dict[_Key, _Entry] = {}
        self._queue: list[tuple[float, int, _Key]] = []

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def priority(self, nbytes: int, cost: float, frequency: int) -> float:
        """Return the priority that an entry has now if it is used for the `frequency`th time."""
        return self._level + frequency * cost / nbytes

    def add(self, key: _Key, nbytes: int, cost: float, frequency: int = 1) -> None:
        """Add a new key that was used `frequency` times."""
        assert key not in self._entries, "a key is added once"
        assert nbytes > 0, "an entry has bytes"
        self._uses += 1
        priority = self.priority(nbytes, cost, frequency)
        entry = _Entry(nbytes, cost, frequency, priority, self._uses, self._uses)
        self._entries[key] = entry
        self.nbytes += nbytes
        heapq.heappush(self._queue, (entry.priority, entry.queued, key))

    def touch(self, key: _Key) -> None:
        """Record a use of a key. An unknown key is ignored."""
        entry = self._entries.get(key)
        if entry is None:
            return
        self._uses += 1
        entry.frequency += 1
        entry.priority = self.priority(entry.nbytes, entry.cost, entry.frequency)
        entry.used = self._uses

    def remove(self, key: _Key) -> bool:
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

    def evict(self, keys: Iterable[_Key]) -> None:
        """Remove keys that were evicted. The others age."""
        for key in keys:
            self._level = max(self._level, self._entries[key].priority)
            self.remove(key)

    def victims(self, needed_bytes: int, limit: float | None = None) -> tuple[_Key, ...] | None:
        """Return the keys to evict to free `needed_bytes`: lowest priority first, then least recently used first.

        Args:
            limit: Choose no key with a higher priority than this; None means any.

        Returns:
            None if these keys do not suffice. Then no key should be evicted.
        """
        chosen: list[_Key] = []
        popped: list[tuple[float, int, _Key]] = []
        while needed_bytes > 0 and self._queue:
            priority, queued, key = heapq.heappop(self._queue)
            entry = self._entries.get(key)
            if entry is None or entry.queued != queued:
                continue  # a removed key
            if entry.used != queued:
                entry.queued = entry.used
                heapq.heappush(self._queue, (entry.priority, entry.used, key))
                continue
            popped.append((priority, queued, key))
            if limit is not None and priority > limit:
                break
            chosen.append(key)
            needed_bytes -= entry.nbytes
        for item in popped:
            heapq.heappush(self._queue, item)
        return tuple(chosen) if needed_bytes <= 0 else None
