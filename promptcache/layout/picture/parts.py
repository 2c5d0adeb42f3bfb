"""What a picture of a layout shows, before it has a size: marks for what stands at positions, boxes around them.

Comes in: nothing; `measure` builds these, `fold` cuts them into lines. Goes out: to the geometry. Positions are
half-open ranges, as everywhere. This file knows no pixels and no colours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import TypeAlias

_NONE = range(0)


class Look(StrEnum):
    """What is to be told about a section of positions; where a plan is drawn, only the last three are used."""

    CACHED = "cached"
    FRAME = "frame"
    UNCACHED = "uncached"
    FILLER = "filler"
    REUSED = "reused"
    NEW = "new"
    ABSENT = "absent"


class MarkKind(StrEnum):
    """What a mark stands for; `NEXT` is the place where generation starts."""

    TEXT = "text"
    SLOT = "slot"
    GAP = "gap"
    NEXT = "next"


class BoxKind(StrEnum):
    """What a box goes around; `REQUEST` is what a prompt adds after the schema."""

    SCHEMA = "schema"
    TURN = "turn"
    MODULE = "module"
    UNION = "union"
    REQUEST = "request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Covers:
    """Which modules, runs and slots of the layout a part shows, as ranges of their indices in document order."""

    modules: range = _NONE
    runs: range = _NONE
    slots: range = _NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Positions `[start, stop)` with one look."""

    start: int
    stop: int
    look: Look


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A text, a slot or a gap.

    Attributes:
        labels: What may stand on it, the longest first.
        notes: Lines that are shown while the pointer rests on it.
        sections: What holds its positions; the rest of a slot is empty.
        present: Whether the prompt uses it; true where no plan is drawn.
    """

    kind: MarkKind
    start: int
    stop: int
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    covers: Covers = Covers()
    present: bool = True

    @property
    def inside(self) -> Covers:
        """What it covers."""
        return self.covers


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """Parts that belong together: rows below each other, each with parts side by side.

    Attributes:
        labels: What may stand on it, the longest first.
        notes: Lines that are shown while the pointer rests on it.
        present: Whether the prompt uses it; true where no plan is drawn.
        is_continued: Whether it began on an earlier line of the picture.
    """

    kind: BoxKind
    start: int
    stop: int
    rows: tuple[tuple[Part, ...], ...]
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    covers: Covers = Covers()
    present: bool = True
    is_continued: bool = False

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of all rows."""
        return tuple(chain.from_iterable(self.rows))

    @property
    def inside(self) -> Covers:
        """What it covers together with everything in it."""
        return joined(self.covers, *(part.inside for part in self.parts))


Part: TypeAlias = Mark | Box


def joined(*covers: Covers) -> Covers:
    """Return the smallest ranges that hold all of `covers`."""
    return Covers(
        modules=_hull(each.modules for each in covers),
        runs=_hull(each.runs for each in covers),
        slots=_hull(each.slots for each in covers),
    )


def _hull(ranges: Iterable[range]) -> range:
    filled = [each for each in ranges if each]
    return range(min(each.start for each in filled), max(each.stop for each in filled)) if filled else _NONE
