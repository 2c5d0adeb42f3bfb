"""Which ranges of a stretch of memory are free. Pure bookkeeping of numbers; this file knows no tensors.

Comes in: sizes, and ranges to take and to give back. Goes out: ranges. The law of conservation: every number below the
capacity is either free or taken, never both; free ranges neither touch nor overlap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple


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
