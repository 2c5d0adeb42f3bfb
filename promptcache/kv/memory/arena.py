"""Blocks of memory for KV, and the allocations in them.

An allocation is a range of a block that holds the KV of one run. It is *kept* while the store wants it, and *in use*
while a request holds its `KVHandle`, which is known by a weak reference. Otherwise its range is free.
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
    """Half-open range of tokens."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of tokens."""
        return self.stop - self.start


class FreeRanges:
    """Free ranges of `[0, capacity)`, with neighbours merged. Every token is either free or taken."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._ranges = [Range(0, capacity)] if capacity else []

    def __iter__(self) -> Iterator[Range]:
        """Yield the free ranges in order."""
        return iter(tuple(self._ranges))

    def take(self, size: int) -> Range | None:
        """Take `size` tokens from the start of the smallest range that has them; None if no range has them."""
        fitting = (each for each in self._ranges if each.size >= size)
        best = min(fitting, key=lambda each: each.size, default=None)
        if best is None:
            return None
        taken = Range(best.start, best.start + size)
        self.take_at(taken)
        return taken

    def take_at(self, wanted: Range) -> bool:
        """Take exactly this range; return False if any of it is taken."""
        at = bisect_right(self._ranges, wanted.start, key=lambda each: each.start) - 1
        if at < 0 or self._ranges[at].stop < wanted.stop:
            return False
        around = self._ranges[at]
        remainders = (Range(around.start, wanted.start), Range(wanted.stop, around.stop))
        self._ranges[at : at + 1] = [each for each in remainders if each.size]
        return True

    def give_back(self, range_: Range) -> None:
        """Free a range that was taken."""
        at = bisect_left(self._ranges, range_.start, key=lambda each: each.start)
        before, after = self._ranges[at - 1 : at] if at else [], self._ranges[at : at + 1]
        assert not before or before[0].stop <= range_.start, "a range is freed once"
        assert not after or range_.stop <= after[0].start, "a range is freed once"
        start, stop = range_
        first, last = at, at
        if before and before[0].stop == start:
            start, first = before[0].start, at - 1
        if after and after[0].start == stop:
            stop, last = after[0].stop, at + 1
        self._ranges[first:last] = [Range(start, stop)]


@dataclass(slots=True, kw_only=True, eq=False)
class Allocation:
    """A range of a block with the KV of one run. `kept` is true while the store wants it."""

    block: Block
    range: Range
    kept: bool = False
    freed: bool = False
    handle_ref: weakref.ref[KVHandle] | None = field(default=None, repr=False)

    @property
    def in_use(self) -> bool:
        """Whether a request holds the handle."""
        return self.handle_ref is not None and self.handle_ref() is not None

    def handle(self) -> KVHandle:
        """Return the handle of this allocation. While it is alive, all callers share one object."""
        handle = self.handle_ref() if self.handle_ref is not None else None
        if handle is None:
            handle = KVHandle(slab=self.block.memory(), start=self.range.start, stop=self.range.stop)
            self.handle_ref = weakref.ref(handle, self._on_unused)
        return handle

    def _on_unused(self, _: weakref.ref[KVHandle]) -> None:
        if not self.kept:
            self.block.unused.append(self)  # nothing else: the garbage collector may call this in any thread


class Block:
    """A slab with its allocations. The memory is allocated with the first of them."""

    def __init__(self, shape: KVShape, capacity: int) -> None:
        self.free = FreeRanges(capacity)
        self.allocations: set[Allocation] = set()
        self.unused: deque[Allocation] = deque()  # neither kept nor in use, to be freed by `collect`
        self._shape = shape
        self._slab: Slab | None = None

    def memory(self) -> Slab:
        """Return the slab; allocate it at the first call."""
        if self._slab is None:
            self._slab = Slab.empty(self._shape, self.free.capacity)
        return self._slab

    def free_memory(self) -> None:
        """Free the slab of an empty block that is not used again. Owners of buffers may still refer to the block."""
        self._slab = None

    def allocate(self, range_: Range) -> tuple[Allocation, KVHandle]:
        """Return an allocation of a range that was taken from `free`. It lives as long as its handle or `kept`."""
        allocation = Allocation(block=self, range=range_)
        self.allocations.add(allocation)
        try:
            return allocation, allocation.handle()
        except BaseException:  # out of memory: without a handle, nothing would free the range later
            self.release(allocation)
            raise

    def release(self, allocation: Allocation) -> None:
        """Free an allocation unless it is kept or in use."""
        if allocation.kept or allocation.in_use or allocation.freed:
            return
        allocation.freed, allocation.handle_ref = True, None
        self.allocations.discard(allocation)
        self.free.give_back(allocation.range)

    def collect(self) -> None:
        """Free the allocations that are neither kept nor in use."""
        while self.unused:
            self.release(self.unused.popleft())

    def victims(self, size: int, ranked: Iterable[Allocation]) -> tuple[Allocation, ...] | None:
        """Return the allocations to evict so that `size` tokens are free in one gap; None if that is impossible.

        Allocations in use cannot be moved. They divide the block into gaps, and everything inside a gap can be moved.
        So one gap must have the room, and allocations in other gaps stay.

        Args:
            size: Number of tokens.
            ranked: Allocations that may be evicted, in order of eviction.
        """
        fixed = self._fixed()
        free = [0] * (len(fixed) + 1)
        for each in self.free:
            free[bisect_right(fixed, each.start)] += each.size
        if max(free) >= size:
            return ()
        chosen: list[list[Allocation]] = [[] for _ in free]
        for allocation in ranked:
            if allocation.block is not self or allocation.in_use:
                continue
            gap = bisect_right(fixed, allocation.range.start)
            chosen[gap].append(allocation)
            free[gap] += allocation.range.size
            if free[gap] >= size:
                return tuple(chosen[gap])
        return None

    def compact(self, size: int) -> Range:
        """Take `size` tokens that are free in one gap. Move other allocations if needed, as few tokens as possible."""
        taken = self.free.take(size)
        if taken is None:
            window = min(self._windows(size), key=_tokens_between)
            self._slide(Range(window[0].start, window[-1].stop))
            taken = self.free.take(size)
        assert taken is not None, "the gap has the room"
        return taken

    def _fixed(self) -> list[int]:
        """Return the starts of the allocations in use."""
        return sorted(each.range.start for each in self.allocations if each.in_use)

    def _windows(self, size: int) -> Iterator[Sequence[Range]]:
        """Yield the shortest sequences of free ranges in one gap that together have `size` tokens."""
        fixed, free = self._fixed(), list(self.free)
        first, total = 0, 0
        for last, each in enumerate(free):
            if last and bisect_right(fixed, free[last - 1].start) != bisect_right(fixed, each.start):
                first, total = last, 0
            total += each.size
            while total - free[first].size >= size:
                total -= free[first].size
                first += 1
            if total >= size:
                yield free[first : last + 1]

    def _slide(self, window: Range) -> None:
        """Move all allocations in a window to its start."""
        inside = [each for each in self.allocations if window.start <= each.range.start < window.stop]
        start = window.start
        for allocation in sorted(inside, key=lambda each: each.range):
            target = Range(start, start + allocation.range.size)
            self.free.give_back(allocation.range)
            fits = self.free.take_at(target)
            assert fits, "allocations below were moved before"
            _move(self.memory(), allocation.range, target)
            allocation.range, allocation.handle_ref = target, None
            start = target.stop


def _tokens_between(window: Sequence[Range]) -> int:
    return window[-1].stop - window[0].start - sum(each.size for each in window)


def _move(slab: Slab, source: Range, target: Range) -> None:
    """Copy KV inside a slab, layer by layer. Source and target may overlap."""
    for tensor in (slab.keys, slab.values):
        for layer in tensor:
            layer[:, target.start : target.stop] = layer[:, source.start : source.stop].clone()


@dataclass(slots=True, eq=False)
class _Reservation:
    """Announced keys that are to be adjacent, with their ranges relative to its start.

    Attributes:
        ranges: Range of each key.
        cancelled: Ranges of keys that were cancelled.
        size: Number of tokens.
        block, start: Its position, set when its first key is stored.
        reserved: Keys whose range is taken and not used yet.
    """

    ranges: dict[str, Range] = field(default_factory=dict)
    cancelled: list[Range] = field(default_factory=list)
    size: int = 0
    block: Block | None = None
    start: int = 0
    reserved: set[str] = field(default_factory=set)

    def range(self, key: str) -> Range:
        """Return the range of a key in the block."""
        return self.in_block(self.ranges[key])

    def in_block(self, range_: Range) -> Range:
        """Return a range of the reservation as a range of the block."""
        return Range(self.start + range_.start, self.start + range_.stop)


class Reservations:
    """Adjacent ranges for keys that were announced and not stored yet.

    A reservation is no longer than a block. It is a hint: it is given up when other encodings or buffers need the room.
    """

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._by_key: dict[str, _Reservation] = {}

    def announce(self, sizes: Sequence[tuple[str, int]]) -> None:
        """Reserve ranges for new keys with their numbers of tokens."""
        reservation = _Reservation()
        for key, size in sizes:
            if key in self._by_key or size > self._block_tokens:
                continue
            if reservation.size + size > self._block_tokens:
                reservation = _Reservation()
            reservation.ranges[key] = Range(reservation.size, reservation.size + size)
            reservation.size += size
            self._by_key[key] = reservation

    def unplaced_tokens(self, key: str) -> int:
        """Return the size of the reservation of `key` if it has no position yet, otherwise 0."""
        reservation = self._by_key.get(key)
        return reservation.size if reservation is not None and reservation.block is None else 0

    def take(self, key: str, size: int, blocks: Sequence[Block]) -> tuple[Block, Range] | None:
        """Take the range of `key`, if it is free. The first key of a reservation takes room for all of it."""
        reservation = self._by_key.get(key)
        if reservation is None or reservation.ranges[key].size != size:
            return None
        if reservation.block is None and not self._place(reservation, blocks):
            return None
        assert reservation.block is not None, "the reservation has a position"
        wanted = reservation.range(key)
        if key in reservation.reserved:
            reservation.reserved.discard(key)
            return reservation.block, wanted
        return (reservation.block, wanted) if reservation.block.free.take_at(wanted) else None

    def cancel(self, key: str) -> None:
        """Forget an announced key and free its range."""
        reservation = self._by_key.pop(key, None)
        if reservation is not None and key in reservation.reserved:
            self._free(reservation, {key})
        if reservation is not None:
            reservation.cancelled.append(reservation.ranges.pop(key))

    def give_up(self) -> None:
        """Free all reserved ranges."""
        for reservation in set(self._by_key.values()):
            self._free(reservation, reservation.reserved)

    def remove_block(self, block: Block) -> None:
        """Forget the position of the reservations in a block that is freed."""
        for reservation in set(self._by_key.values()):
            if reservation.block is block:
                reservation.block = None
                reservation.reserved.clear()

    @staticmethod
    def _free(reservation: _Reservation, keys: set[str]) -> None:
        for key in keys:
            assert reservation.block is not None, "only a reservation with a position has reserved ranges"
            reservation.block.free.give_back(reservation.range(key))
        reservation.reserved = reservation.reserved - keys

    def _place(self, reservation: _Reservation, blocks: Sequence[Block]) -> bool:
        for block in blocks:
            taken = block.free.take(reservation.size)
            if taken is not None:
                reservation.block, reservation.start, reservation.reserved = block, taken.start, set(reservation.ranges)
                for range_ in reservation.cancelled:
                    block.free.give_back(reservation.in_block(range_))
                return True
        return False
