"""Blocks of memory for KV: who has which range, what may be moved, and how room is made in one piece.

Comes in: sizes in tokens. Goes out: places, each of them a range of a slab. A place is *kept* while the store wants it,
and *in use* while anybody has the `KVHandle` that was handed out for it, which a weak reference tells; it is free again
when it is neither.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from promptcache.kv.memory.ranges import FreeRanges, Range
from promptcache.kv.types import KVHandle, KVShape, Slab


@dataclass(slots=True, kw_only=True, eq=False)
class Place:
    """A range of a block with the KV of one run; `kept` says whether the store still wants it."""

    block: Block
    range: Range
    kept: bool = False
    freed: bool = False
    handle: weakref.ref[KVHandle] | None = field(default=None, repr=False)

    @property
    def in_use(self) -> bool:
        """Whether somebody beside the store has it."""
        return self.handle is not None and self.handle() is not None

    def run(self) -> KVHandle:
        """Return the `KVHandle` that is handed out for this place, one for all who ask while one of them has it."""
        run = self.handle() if self.handle is not None else None
        if run is None:
            run = KVHandle(slab=self.block.memory(), start=self.range.start, stop=self.range.stop)
            self.handle = weakref.ref(run, self._left)
        return run

    def _left(self, _: weakref.ref[KVHandle]) -> None:
        if not self.kept:  # what is kept is freed by whoever lets go of it
            self.block.left.append(self)  # nothing more: this runs between any two lines of any thread


class Block:
    """A slab's worth of places; it has memory from the first place on, and while it has any."""

    def __init__(self, shape: KVShape, capacity: int) -> None:
        self.free = FreeRanges(capacity)
        self.places: set[Place] = set()
        self.left: deque[Place] = deque()  # nobody uses these any more
        self._shape = shape
        self._slab: Slab | None = None

    def memory(self) -> Slab:
        """Return the slab, with memory from now on."""
        if self._slab is None:
            self._slab = Slab.empty(self._shape, self.free.capacity)
        return self._slab

    def settle(self) -> None:
        """Free what nobody uses any more and nobody wants."""
        while self.left:
            self.release(self.left.popleft())

    def claim(self, range_: Range) -> tuple[Place, KVHandle]:
        """Return a new place for a range that was taken from `free`; unless it is kept, it goes with its `KVHandle`."""
        place = Place(block=self, range=range_)
        self.places.add(place)
        try:
            return place, place.run()
        except BaseException:  # no memory; a place that nobody uses would never be released
            self.release(place)
            raise

    def release(self, place: Place) -> None:
        """Free a place, unless it is kept or in use."""
        if place.kept or place.in_use or place.freed:
            return
        place.freed, place.handle = True, None
        self.places.discard(place)
        self.free.give(place.range)

    def room(self, size: int, ranked: Iterable[Place]) -> tuple[Place, ...] | None:
        """Return what to evict so that `size` tokens are free with nothing in use between them; None if it cannot be.

        What is in use parts the block into gaps; inside of one everything can be moved. So it is one gap that must have
        the room, and nothing is evicted from another.

        Args:
            ranked: Places that may be evicted, those to go first first.
        """
        walls = self._walls()
        free = [0] * (len(walls) + 1)
        for each in self.free:
            free[bisect_right(walls, each.start)] += each.size
        if max(free) >= size:
            return ()
        chosen: list[list[Place]] = [[] for _ in free]
        for place in ranked:
            if place.block is not self or place.in_use:
                continue
            gap = bisect_right(walls, place.range.start)
            chosen[gap].append(place)
            free[gap] += place.range.size
            if free[gap] >= size:
                return tuple(chosen[gap])
        return None

    def gather(self, size: int) -> Range:
        """Take `size` tokens, which are free with nothing in use between them, in one piece, moving as few others as
        possible."""
        taken = self.free.take(size)
        if taken is None:
            window = min(self._windows(size), key=_moved)
            self._slide(Range(window[0].start, window[-1].stop))
            taken = self.free.take(size)
        assert taken is not None, "there is room now"
        return taken

    def _walls(self) -> list[int]:
        return sorted(place.range.start for place in self.places if place.in_use)

    def _windows(self, size: int) -> Iterator[Sequence[Range]]:
        """Yield shortest sequences of free ranges that together have the size, and no wall between them."""
        walls, free = self._walls(), list(self.free)
        first, total = 0, 0
        for last, each in enumerate(free):
            if last and bisect_right(walls, free[last - 1].start) != bisect_right(walls, each.start):
                first, total = last, 0
            total += each.size
            while total - free[first].size >= size:
                total -= free[first].size
                first += 1
            if total >= size:
                yield free[first : last + 1]

    def _slide(self, window: Range) -> None:
        """Move everything in a window to its start."""
        inside = [place for place in self.places if window.start <= place.range.start < window.stop]
        start = window.start
        for place in sorted(inside, key=lambda place: place.range):
            target = Range(start, start + place.range.size)
            self.free.give(place.range)
            fits = self.free.take_at(target)
            assert fits, "what lies below was moved before"
            _move(self.memory(), place.range, target)
            place.range, place.handle = target, None
            start = target.stop


def _moved(window: Sequence[Range]) -> int:
    return window[-1].stop - window[0].start - sum(each.size for each in window)


def _move(slab: Slab, source: Range, target: Range) -> None:
    """Copy KV inside a slab, layer by layer: source and target may overlap."""
    for tensor in (slab.keys, slab.values):
        for layer in tensor:
            layer[:, target.start : target.stop] = layer[:, source.start : source.stop].clone()
