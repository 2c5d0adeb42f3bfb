"""What to give up when a tier is full: GreedyDual-Size-Frequency.

Comes in: which keys are kept, their bytes, what it would cost to make them again, and every use of one. Goes out: the
keys that are missed least. Pure bookkeeping: no clock, no files, no tensors, no lock of its own.

After Cherkasova, "Improving WWW Proxies Performance with Greedy-Dual-Size-Frequency Caching Policy" (HP Laboratories,
HPL-98-69R1, 1998): the priority of a key is `L + frequency * cost / bytes`, set anew at every use. L is the highest
priority that was ever evicted, so what is not used any more ages without being touched. One thing differs: what is new
always comes in. There it may lose against what is kept, and then a workload that has moved on can be locked out by
the popularity of the one before it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from promptcache.kv.keys import Recipe

CONTEXT_FREE_TOKENS = 4096
"""How far a token must look back until attention costs as much as everything else in a layer: about six times the
width of the model (12 width² multiplications per token in projections and MLP, 2 width per token seen)."""

Cost: TypeAlias = Callable[[Recipe], float]
"""What it costs to make an encoding again, in any unit; above 0."""


def encoding_cost(recipe: Recipe) -> float:
    """Return what an encoding costs to compute, in token equivalents: its tokens, dearer the more lies before them."""
    return recipe.num_tokens * (1 + recipe.last_position / CONTEXT_FREE_TOKENS)


@dataclass(slots=True)
class _Entry:
    nbytes: int
    cost: float
    frequency: int
    priority: float
    used: int  # number of its latest use: no two entries share one
    queued: int  # `used` as its place in the queue has it


class GreedyDual:
    """Keys by priority; not thread-safe.

    The queue holds each key once, at the priority it had when it was last looked at. Uses only raise priorities, so
    that is a lower bound, and a use costs no more than a dict access: places are put right when victims are sought.
    """

    def __init__(self) -> None:
        self.nbytes = 0
        self._level = 0.0
        self._uses = 0
        self._entries: dict[str, _Entry] = {}
        self._pinned: set[str] = set()
        self._queue: list[tuple[float, int, str]] = []

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def pinned(self) -> frozenset[str]:
        """Keys that are never victims, whether they are there or not."""
        return frozenset(self._pinned)

    def add(self, key: str, nbytes: int, cost: float) -> None:
        """Take in a key that is not there, as used once."""
        assert key not in self._entries, "a key is added once"
        assert nbytes > 0, "an entry takes room"
        self._uses += 1
        entry = _Entry(nbytes, cost, 1, self._level + cost / nbytes, self._uses, self._uses)
        self._entries[key] = entry
        self.nbytes += nbytes
        heapq.heappush(self._queue, (entry.priority, entry.queued, key))

    def touch(self, key: str) -> None:
        """Note a use; a key that is not there is none of our business."""
        entry = self._entries.get(key)
        if entry is None:
            return
        self._uses += 1
        entry.frequency += 1
        entry.priority = self._level + entry.frequency * entry.cost / entry.nbytes
        entry.used = self._uses

    def remove(self, key: str) -> bool:
        """Forget a key that was deleted; nothing ages by that. Return whether it was there."""
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
        """Forget keys because room is needed; what stays ages."""
        for key in keys:
            self._level = max(self._level, self._entries[key].priority)
            self.remove(key)

    def pin(self, keys: Iterable[str]) -> None:
        """Never make these victims, now or when they come."""
        self._pinned.update(keys)

    def unpin(self, keys: Iterable[str]) -> None:
        """Take pins back."""
        self._pinned.difference_update(keys)

    def victims(self, needed_bytes: int, in_use: Callable[[str], bool]) -> tuple[str, ...] | None:
        """Return the keys to evict, lowest priority first, so that `needed_bytes` or more are freed.

        Args:
            in_use: Whether a key must stay for now.

        Returns:
            None if all that may be evicted does not suffice; then nothing should be evicted.
        """
        chosen: list[str] = []
        for key in self.ranked():
            if needed_bytes <= 0:
                break
            if not in_use(key):
                chosen.append(key)
                needed_bytes -= self._entries[key].nbytes
        return tuple(chosen) if needed_bytes <= 0 else None

    def ranked(self) -> Iterator[str]:
        """Yield keys that are not pinned, lowest priority first, of equal ones the one not used for longest.

        Nothing may be added, used or removed before the iterator is closed or exhausted.
        """
        seen: list[tuple[float, int, str]] = []
        try:
            while self._queue:
                priority, queued, key = heapq.heappop(self._queue)
                entry = self._entries.get(key)
                if entry is None or entry.queued != queued:
                    continue  # left behind by a key that was removed
                if entry.used != queued:
                    entry.queued = entry.used
                    heapq.heappush(self._queue, (entry.priority, entry.used, key))
                    continue
                seen.append((priority, queued, key))
                if key not in self._pinned:
                    yield key
        finally:
            for place in seen:
                heapq.heappush(self._queue, place)
