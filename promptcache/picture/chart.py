"""Types of a picture: a chart of lines, with texts, slots and gaps as marks. Units are positions, not pixels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import NamedTuple

_NO_INDICES = range(0)


class Look(StrEnum):
    """Style of positions. A picture of a plan uses `REUSED`, `REPAIRED`, `NEW`, `ABSENT` and `NEXT`."""

    CACHED = "cached"
    FRAME = "frame"
    UNCACHED = "uncached"
    SLOT = "slot"
    FILLER = "filler"
    GAP = "gap"
    TEXT = "text"
    REUSED = "reused"
    REPAIRED = "repaired"
    NEW = "new"
    ABSENT = "absent"
    NEXT = "next"
    TOGETHER = "together"


class LineKind(StrEnum):
    """Kind of a line: `ROOT` is the text outside modules and turns, `FOLD` several neighbours in one line."""

    ROOT = "root"
    TURN = "turn"
    MODULE = "module"
    UNION = "union"
    SCAFFOLD = "scaffold"
    PROMPT = "prompt"
    FOLD = "fold"


class Section(NamedTuple):
    """Positions `[start, stop)` of a mark with one style."""

    start: int
    stop: int
    look: Look


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Text, slot or gap.

    Attributes:
        labels: The longest first.
        notes: Lines of the tooltip.
        sections: Parts with a different style.
        runs: Index of its run in the layout; empty in a scaffold, whose runs have marks of their own.
        slots: Index of its slot in document order.
    """

    start: int
    stop: int
    look: Look
    labels: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    present: bool = True
    runs: range = _NO_INDICES
    slots: range = _NO_INDICES


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """Module, union or turn in the positions `[start, stop)`.

    Attributes:
        labels: The longest first.
        notes: Lines of the tooltip.
        num_tokens: Number of its own tokens while slots hold their fillers; None if the number is not useful.
        present: Whether the prompt uses it; true without a plan.
        is_open: Whether its children are shown at first.
        sees: Index of the set of runs that it attends to.
        seen_in: Indices of the sets that it belongs to.
        modules: Index of its module in document order.
    """

    kind: LineKind
    start: int
    stop: int
    labels: tuple[str, ...]
    notes: tuple[str, ...] = ()
    num_tokens: int | None = None
    marks: tuple[Mark, ...] = ()
    children: tuple[ChartLine, ...] = ()
    present: bool = True
    is_open: bool = True
    sees: int | None = None
    seen_in: tuple[int, ...] = ()
    modules: range = _NO_INDICES

    @property
    def everything(self) -> Iterator[ChartLine]:
        """Yield the line and all lines below it."""
        yield self
        for child in self.children:
            yield from child.everything


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """All content of a picture; `num_contexts` is the number of sets of runs that modules attend to."""

    title: str
    summary: str
    stop: int
    lines: tuple[ChartLine, ...]
    num_contexts: int

    @property
    def looks(self) -> set[str]:
        """Styles that occur in the chart, and `many` if lines are folded."""
        lines = [each for line in self.lines for each in line.everything]
        found = {look for line in lines for mark in line.marks for look in looks_of(mark)}
        return found | {"many" for line in lines if not line.is_open} | {line.kind for line in lines}


def looks_of(mark: Mark) -> Iterator[str]:
    """Yield the styles of a mark and its sections."""
    yield mark.look if mark.present else Look.ABSENT
    yield from (section.look for section in mark.sections)


def indices(lines: Iterable[ChartLine], marks: Iterable[Mark]) -> Iterator[tuple[str, str]]:
    """Yield the indices of the modules, runs and slots in an element: "3", or "3-9" for a range."""
    parts = list(marks)
    shown = {
        "modules": [line.modules for line in lines],
        "runs": [each.runs for each in parts],
        "slots": [each.slots for each in parts],
    }
    for name, ranges in shown.items():
        found = list(chain.from_iterable(ranges))
        if found:
            first, last = min(found), max(found)
            yield f"data-{name}", f"{first}-{last}" if last > first else f"{first}"
