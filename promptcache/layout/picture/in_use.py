"""Which positions of a piece hold what: in the layout alone, or in one request.

Comes in: a plan, or none. Goes out: sections of runs' pieces. This file does not know where pieces are drawn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import groupby

from promptcache.layout.picture.parts import Look, Section
from promptcache.layout.types import Piece, Plan, Run, Slot


class InUse:
    """Says what is in use; without a plan, every module counts as present and slots hold their fillers."""

    def __init__(self, plan: Plan | None) -> None:
        given = () if plan is None else plan.selection.arguments
        self._arguments = {(argument.module, argument.parameter): argument.text for argument in given}
        self._modules = None if plan is None else frozenset(("", *plan.selection.modules))
        self._sections = [] if plan is None else sorted(_sections(plan), key=lambda section: section.start)
        self._stops = [section.stop for section in self._sections]  # sorted, too: present tokens are disjoint

    def has(self, module: str) -> bool:
        """Whether the request uses a module."""
        return self._modules is None or module in self._modules

    def argument(self, slot: Slot) -> str | None:
        """Return the text that the request puts into a slot, where it gives one."""
        return self._arguments.get((slot.module, slot.parameter))

    def sections(self, run: Run, piece: Piece, *, is_frame: bool = False) -> tuple[Section, ...]:
        """Return what stands in a piece of `run`, in position order; the empty part of a slot is left out."""
        if self._modules is None:
            return tuple(_as_encoded(run, piece, is_frame=is_frame))
        if run.module in self._modules:
            return tuple(self._between(piece.start, piece.stop))
        is_text = not isinstance(piece, Slot)
        return (Section(start=piece.start, stop=piece.stop, look=Look.ABSENT),) if is_text else ()

    def _between(self, start: int, stop: int) -> Iterator[Section]:
        for index in range(bisect_right(self._stops, start), len(self._sections)):
            section = self._sections[index]
            if section.start >= stop:
                return
            yield Section(start=max(start, section.start), stop=min(stop, section.stop), look=section.look)


def _as_encoded(run: Run, piece: Piece, *, is_frame: bool) -> Iterator[Section]:
    """Yield what holds a piece's positions while its run is encoded."""
    if isinstance(piece, Slot):
        if piece.filler_ids:
            yield Section(start=piece.start, stop=piece.start + len(piece.filler_ids), look=Look.FILLER)
    else:
        look = Look.UNCACHED if not run.cached else Look.FRAME if is_frame else Look.CACHED
        yield Section(start=piece.start, stop=piece.stop, look=look)


def _sections(plan: Plan) -> Iterator[Section]:
    """Yield all that a request reuses and prefills."""
    for reuse in plan.reuse:
        for _, group in groupby(enumerate(reuse.part.position_ids), key=lambda pair: pair[1] - pair[0]):
            positions = [position for _, position in group]
            yield Section(start=positions[0], stop=positions[-1] + 1, look=Look.REUSED)
    for new in plan.prefill:
        yield Section(start=new.start, stop=new.stop, look=Look.NEW)
