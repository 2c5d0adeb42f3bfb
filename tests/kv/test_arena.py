"""Free ranges agree with a list of booleans."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from promptcache.kv.memory.arena import FreeRanges, Range
from tests.conftest import law_examples

CAPACITY = 20


class Agreement(RuleBasedStateMachine):
    """`FreeRanges`, and one boolean for each token."""

    def __init__(self) -> None:
        super().__init__()
        self.free = FreeRanges(CAPACITY)
        self.is_free = [True] * CAPACITY
        self.taken: list[Range] = []

    def mark(self, range_: Range, is_free: bool) -> None:
        """Mark a range as taken or free, and check that it was not so before."""
        assert self.is_free[slice(*range_)] == [not is_free] * range_.size
        self.is_free[slice(*range_)] = [is_free] * range_.size

    def longest(self) -> list[int]:
        """Return the lengths of the free ranges."""
        return [len(part) for part in "".join("x" if each else " " for each in self.is_free).split()]

    @rule(size=st.integers(1, CAPACITY))
    def take(self, size: int) -> None:
        """Take tokens from the smallest range that has them."""
        fitting = [length for length in self.longest() if length >= size]
        range_ = self.free.take(size)
        assert (range_ is None) == (not fitting)
        if range_ is not None:
            assert range_.size == size
            before = sorted(self.longest())
            before.remove(min(fitting))
            self.mark(range_, False)
            self.taken.append(range_)
            rest = [min(fitting) - size] if min(fitting) > size else []
            assert sorted(self.longest()) == sorted(before + rest)

    @rule(start=st.integers(0, CAPACITY - 1), size=st.integers(1, 5))
    def take_at(self, start: int, size: int) -> None:
        """Take exactly this range, if all of it is free."""
        range_ = Range(start, min(start + size, CAPACITY))
        assert self.free.take_at(range_) == all(self.is_free[slice(*range_)])
        if all(self.is_free[slice(*range_)]):
            self.mark(range_, False)
            self.taken.append(range_)

    @rule(number=st.integers(0, 100), data=st.data())
    def give(self, number: int, data: st.DataObject) -> None:
        """Free a range, or the start of one."""
        if self.taken:
            range_ = self.taken.pop(number % len(self.taken))
            cut = data.draw(st.integers(range_.start + 1, range_.stop))
            if cut < range_.stop:
                self.taken.append(Range(cut, range_.stop))
            self.free.give_back(Range(range_.start, cut))
            self.mark(Range(range_.start, cut), True)

    @invariant()
    def conserved(self) -> None:
        """Every token is free or taken, and free neighbours are merged."""
        ranges = list(self.free)
        assert [each.size for each in ranges] == self.longest()
        assert [number for each in ranges for number in range(*each)] == [
            number for number, each in enumerate(self.is_free) if each
        ]


Agreement.TestCase.settings = settings(max_examples=law_examples(0.4))
TestAgreement = pytest.mark.law(Agreement.TestCase)
