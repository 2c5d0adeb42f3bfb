"""Blocks of memory for KV: who has which range, what may be moved, and how room is made in one piece.

Comes in: sizes in tokens. Goes out: places, each of them a range of a slab. A place is *kept* while the store wants it,
and *in use* while anybody has the `KVHandle` that was handed out for it, which a weak reference tells; it is free again
when it is neither.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from promptcache.kv.types import KVHandle, KVShape, Slab


class Range(NamedTuple):
    """Numbers from `start` up to, but not with, `stop`."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many numbers."""
        return self.stop - self.start


class FreeRanges:
    """The free ranges of `[0, capacity)`, neighbours always as one; all of it is free at first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._ranges = [Range(0, capacity)] if capacity else []

    def __iter__(self) -> Iterator[Range]:
        """Yield the free ranges in order."""
        return iter(tuple(self._ranges))

    def take(self, size: int) -> Range | None:
        """Take `size` numbers from the start of the smallest range that has them; None if none has."""
        fitting = (each for each in self._ranges if each.size >= size)
        best = min(fitting, key=lambda each: each.size, default=None)
        if best is None:
            return None
        taken = Range(best.start, best.start + size)
        self.take_at(taken)
        return taken

    def take_at(self, wanted: Range) -> bool:
        """Take just this range; return whether all of it was free."""
        at = bisect_right(self._ranges, wanted.start, key=lambda each: each.start) - 1
        if at < 0 or self._ranges[at].stop < wanted.stop:
            return False
        around = self._ranges[at]
        rests = (Range(around.start, wanted.start), Range(wanted.stop, around.stop))
        self._ranges[at : at + 1] = [rest for rest in rests if rest.size]
        return True

    def give(self, range_: Range) -> None:
        """Give a taken range back."""
        at = bisect_left(self._ranges, range_.start, key=lambda each: each.start)
        before, after = self._ranges[at - 1 : at] if at else [], self._ranges[at : at + 1]
        assert not before or before[0].stop <= range_.start, "a range is given back once"
        assert not after or range_.stop <= after[0].start, "a range is given back once"
        start, stop = range_
        first, last = at, at
        if before and before[0].stop == start:
            start, first = before[0].start, at - 1
        if after and after[0].start == stop:
            stop, last = after[0].stop, at + 1
        self._ranges[first:last] = [Range(start, stop)]


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


@dataclass(slots=True, eq=False)
class _Row:
    """Keys that shall lie side by side; `block` and `start` are set when the first of them comes.

    `waiting` are keys for which a range was taken and which have not come yet, `dropped` ranges of keys that will not.
    """

    ranges: dict[str, Range] = field(default_factory=dict)
    dropped: list[Range] = field(default_factory=list)
    size: int = 0
    block: Block | None = None
    start: int = 0
    waiting: set[str] = field(default_factory=set)

    def range(self, key: str) -> Range:
        """Where in the block a key belongs."""
        return self.placed(self.ranges[key])

    def placed(self, inside: Range) -> Range:
        """Where in the block a range of the row is."""
        return Range(self.start + inside.start, self.start + inside.stop)


class Reservations:
    """The rows of a store, none longer than a block."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._rows: dict[str, _Row] = {}

    def announce(self, sizes: Sequence[tuple[str, int]]) -> None:
        """Form rows of the keys that are in none yet."""
        row = _Row()
        for key, size in sizes:
            if key in self._rows or size > self._block_tokens:
                continue
            if row.size + size > self._block_tokens:
                row = _Row()
            row.ranges[key] = Range(row.size, row.size + size)
            row.size += size
            self._rows[key] = row

    def wanted(self, key: str) -> int:
        """Return the tokens of the row that `key` is in, if it has no place yet; else 0."""
        row = self._rows.get(key)
        return row.size if row is not None and row.block is None else 0

    def find(self, key: str, size: int, blocks: Sequence[Block]) -> tuple[Block, Range] | None:
        """Take the range where `key` belongs, if it is free; the first of a row takes room for all of it."""
        row = self._rows.get(key)
        if row is None or row.ranges[key].size != size:
            return None
        if row.block is None and not self._settle_down(row, blocks):
            return None
        assert row.block is not None, "it has settled down"
        wanted = row.range(key)
        if key in row.waiting:
            row.waiting.discard(key)
            return row.block, wanted
        return (row.block, wanted) if row.block.free.take_at(wanted) else None

    def drop(self, key: str) -> None:
        """Forget a key that nobody will put again."""
        row = self._rows.pop(key, None)
        if row is not None and key in row.waiting:
            self._give_back(row, {key})
        if row is not None:
            row.dropped.append(row.ranges.pop(key))

    def give_up(self) -> None:
        """Give back whatever is kept free."""
        for row in set(self._rows.values()):
            self._give_back(row, row.waiting)

    def forget(self, block: Block) -> None:
        """Forget that rows have a place in this block: it goes."""
        for row in set(self._rows.values()):
            if row.block is block:
                row.block = None
                row.waiting.clear()

    @staticmethod
    def _give_back(row: _Row, keys: set[str]) -> None:
        for key in keys:
            assert row.block is not None, "only a row with a place keeps room"
            row.block.free.give(row.range(key))
        row.waiting = row.waiting - keys

    def _settle_down(self, row: _Row, blocks: Sequence[Block]) -> bool:
        for block in blocks:
            taken = block.free.take(row.size)
            if taken is not None:
                row.block, row.start, row.waiting = block, taken.start, set(row.ranges)
                for unneeded in row.dropped:
                    block.free.give(row.placed(unneeded))
                return True
        return False
