"""The use of places in a layout: in one request, or without a plan while runs are encoded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import groupby

from promptcache.layout import LeafKind, Origin, Plan, Run, RunPiece, Slot, scaffolds_in_use
from promptcache.picture.chart import Look, Section

_AGAIN = (Origin.REPAIRED, Origin.LAST)


class Use:
    """Use of places in the layout: in one request, or without a plan while runs are encoded."""

    def __init__(self, plan: Plan | None) -> None:
        given = () if plan is None else plan.selection.arguments
        self._arguments = {(argument.module, argument.parameter): argument.text for argument in given}
        self._modules = None if plan is None else frozenset(("", *plan.selection.modules))
        self._scaffolds = frozenset(() if plan is None else _scaffolds(plan))
        self._sections = [] if plan is None else sorted(_sections(plan))
        self._stops = [section.stop for section in self._sections]  # sorted too: the sections are disjoint

    def has(self, module: str) -> bool:
        """Return whether the request uses a module."""
        return self._modules is None or module in self._modules

    def has_scaffold(self, name: str) -> bool:
        """Return whether the request uses a scaffold."""
        return self._modules is None or name in self._scaffolds

    def argument(self, slot: Slot) -> str | None:
        """Return the argument of the request for a slot, or None."""
        return self._arguments.get((slot.module, slot.parameter))

    @property
    def stop(self) -> int:
        """First place behind all text of the schema in use."""
        return max(self._stops, default=0)

    def sections(self, run: Run, piece: RunPiece, kind: LeafKind) -> Iterator[Section]:
        """Yield the sections of a piece in order; the empty part of a slot is left out."""
        if self._modules is None:
            yield from _as_encoded(run, piece, kind)
        elif run.module in self._modules:
            for section in self._sections[bisect_right(self._stops, piece.start) :]:
                if section.start >= piece.stop:
                    return
                yield Section(max(piece.start, section.start), min(piece.stop, section.stop), section.look)
        elif not isinstance(piece, Slot):
            yield Section(piece.start, piece.stop, Look.ABSENT)


def _scaffolds(plan: Plan) -> Iterable[str]:
    return scaffolds_in_use(plan.layout.schema.scaffolds, plan.selection.modules).values()


def _as_encoded(run: Run, piece: RunPiece, kind: LeafKind) -> Iterator[Section]:
    if isinstance(piece, Slot):
        if piece.filler_ids:
            yield Section(piece.start, piece.start + len(piece.filler_ids), Look.FILLER)
    else:
        look = Look.UNCACHED if not run.cached else Look.CACHED if kind is LeafKind.TEXT else Look.FRAME
        yield Section(piece.start, piece.stop, look)


def _sections(plan: Plan) -> Iterator[Section]:
    """Yield a section for all tokens of the schema that a request reuses or prefills."""
    for piece in plan.pieces:
        look = Look.REUSED if piece.origin is None else Look.REPAIRED if piece.origin in _AGAIN else Look.NEW
        for _, group in groupby(enumerate(piece.places), key=lambda pair: pair[1] - pair[0]):
            found = [place for _, place in group]
            yield Section(found[0], found[-1] + 1, look)
