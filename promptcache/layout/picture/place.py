"""Boxes and marks to shapes: every part of a line gets its rectangle, its label as far as it fits, and its words.

Comes in: one line of parts, a scale, and how high things are. Goes out: shapes. Parts too narrow to be told apart are
drawn as one, which says what it stands for. This file does not know how shapes are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, floor
from typing import NamedTuple

from promptcache.layout.picture.excerpt import counted, fit, listed
from promptcache.layout.picture.heights import Heights
from promptcache.layout.picture.notes import positions
from promptcache.layout.picture.parts import Box, BoxKind, Look, Mark, MarkKind, Part, Section, joined
from promptcache.layout.picture.scale import CHAR_WIDTH, LABEL_PAD, MARK_FONT, TITLE_FONT, Scale
from promptcache.layout.picture.shapes import Fill, Label, Shape

_MIN_WIDTH = 2.0  # so that nothing vanishes
_MAX_NAMES = 12
_INSET, _WORTH_AN_INSET = 0.5, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What is drawn apart: parts from `narrow` pixels on, and so many rows of a box."""

    narrow: float
    max_rows: int


class Placed(NamedTuple):
    """Shapes in the order in which they are drawn, and the height that they take."""

    shapes: list[Shape]
    height: float


class Placer:
    """Places the parts of the line that starts at position `line_start`."""

    def __init__(self, scale: Scale, heights: Heights, detail: Detail, line_start: int) -> None:
        self._scale = scale
        self._heights = heights
        self._detail = detail
        self._line_start = line_start

    def rows(self, rows: Sequence[Sequence[Part]], y: float) -> Placed:
        """Place rows below each other; of too many, neighbours as one."""
        shapes: list[Shape] = []
        height = 0.0
        for group in self._row_groups(rows):
            parts = [part for row in group for part in row]
            place = self._row if len(group) == 1 else self._cluster
            placed = place(parts, y + height)
            shapes += placed.shapes
            height += placed.height + self._heights.pad
        return Placed(shapes, height)

    def _row_groups(self, rows: Sequence[Sequence[Part]]) -> Iterator[Sequence[Sequence[Part]]]:
        """Yield rows alone; where there are too many, neighbours together, but none that a prompt uses."""
        together = ceil(len(rows) / self._detail.max_rows)
        for is_used, run in groupby(rows, key=lambda row: row[0].present):
            neighbours = list(run)
            step = 1 if is_used and len(neighbours) < len(rows) else together
            yield from (neighbours[index : index + step] for index in range(0, len(neighbours), step))

    def _row(self, parts: Sequence[Part], y: float) -> Placed:
        """Place parts side by side: narrow ones come last, on top, since they are drawn wider than they are."""
        wide: list[Shape] = []
        narrow: list[Shape] = []
        gaps = [part for part in parts if part.kind is MarkKind.GAP]
        height = self._heights.mark if gaps else 0.0
        for group in self._groups(part for part in parts if part.kind is not MarkKind.GAP):
            if len(group) > 1 or (isinstance(group[0], Box) and self._is_narrow(group[0])):
                placed = self._cluster(group, y)
                narrow += placed.shapes
            elif isinstance(group[0], Box):
                placed = self._box(group[0], y)
                wide += placed.shapes
            else:
                placed = self._mark(group[0], y)
                (narrow if self._is_narrow(group[0]) else wide).extend(placed.shapes)
            height = max(height, placed.height)
        return Placed([*(self._gap(gap, y, height) for gap in gaps), *wide, *narrow], height)

    def _groups(self, parts: Iterable[Part]) -> Iterator[list[Part]]:
        """Yield parts alone, and narrow neighbours together until they are wide enough to point at."""
        group: list[Part] = []
        for part in parts:
            joins = group and group[-1].present == part.present and self._is_narrow(group[-1])
            if joins and self._is_narrow(part) and self._pixels(group) < 2 * self._detail.narrow:
                group.append(part)
                continue
            if group:
                yield group
            group = [part]
        if group:
            yield group

    def _is_narrow(self, part: Part) -> bool:
        return part.kind is not MarkKind.NEXT and (part.stop - part.start) * self._scale.pixels < self._detail.narrow

    def _pixels(self, group: Sequence[Part]) -> float:
        return (group[-1].stop - group[0].start) * self._scale.pixels

    def _box(self, box: Box, y: float) -> Placed:
        title = self._heights.title
        inside = self.rows(box.rows, y + title)
        height = title + max(inside.height, self._heights.mark)
        fill = self._fill(box, y, height, _style(str(box.kind), present=box.present))
        label = None
        if title >= TITLE_FONT:
            begin = "…" if box.is_continued else ""
            labels = [begin + label for label in box.labels]
            label = self._label(labels, fill, y + title / 2, TITLE_FONT, keep_end=box.kind is BoxKind.MODULE)
        shape = Shape(fills=(fill,), label=label, notes=box.notes, covers=box.covers)
        return Placed([shape, *inside.shapes], height)

    def _mark(self, mark: Mark, y: float) -> Placed:
        height = self._heights.mark
        is_slot = mark.kind is MarkKind.SLOT
        fills = [self._fill(section, y, height, str(section.look)) for section in mark.sections]
        if mark.kind is not MarkKind.TEXT or len(fills) != 1:
            style = _style(str(mark.kind), present=mark.present)
            fills = [self._fill(mark, y, height, style), *fills]
        label = None
        if height >= MARK_FONT:
            style = "name" if is_slot else "words"
            label = self._label(mark.labels, fills[0], y + height / 2, MARK_FONT, keep_end=is_slot, style=style)
        return Placed([Shape(fills=tuple(fills), label=label, notes=mark.notes, covers=mark.covers)], height)

    def _gap(self, gap: Part, y: float, height: float) -> Shape:
        """Place a gap: as high as its row, since nothing is there."""
        fill = self._fill(gap, y, height, _style("gap", present=gap.present))
        return Shape(fills=(fill,), label=None, notes=gap.notes, covers=gap.covers)

    def _cluster(self, group: Sequence[Part], y: float) -> Placed:
        """Place parts that are too narrow as one; a single box keeps its own words."""
        height = self._heights.mark
        if any(isinstance(part, Box) for part in group):
            height += self._heights.title
        whole = Mark(kind=MarkKind.TEXT, start=group[0].start, stop=max(part.stop for part in group))
        shape = Shape(
            fills=(self._fill(whole, y, height, _cluster_style(group)),),
            label=None,
            notes=group[0].notes if len(group) == 1 else _cluster_notes(group),
            covers=joined(*(part.inside for part in group)),
        )
        return Placed([shape], height)

    def _fill(self, part: Part | Section, y: float, height: float, style: str) -> Fill:
        """Return the rectangle of a part: to scale, with a hair of room to its neighbours where it has some itself."""
        x = self._scale.x(part.start, self._line_start)
        width = (part.stop - part.start) * self._scale.pixels
        inset = _INSET if width >= _WORTH_AN_INSET else 0.0
        return Fill(x=x + inset, y=y, width=max(width, _MIN_WIDTH) - 2 * inset, height=height, style=style)

    def _label(
        self, labels: Iterable[str], room: Fill, middle: float, font: float, *, keep_end: bool, style: str = "title"
    ) -> Label | None:
        max_columns = floor((room.width - 2 * LABEL_PAD) / (font * CHAR_WIDTH))
        text = fit(labels, max_columns, keep_end=keep_end) if max_columns > 0 else ""
        style = f"{style} faded" if room.style.endswith("absent") else style
        return Label(x=room.x + LABEL_PAD, y=middle + 0.36 * font, text=text, style=style) if text else None


def _style(kind: str, *, present: bool) -> str:
    return kind if present else f"{kind} absent"


def _cluster_style(group: Sequence[Part]) -> str:
    looks = {look for part in group for look in _looks(part)}
    for look in (Look.REUSED, Look.NEW):
        if look in looks:
            return f"many {look}"
    return _style("many", present=group[0].present)


def _looks(part: Part) -> Iterator[Look]:
    if isinstance(part, Mark):
        yield from (section.look for section in part.sections)
    else:
        for each in part.parts:
            yield from _looks(each)


def _cluster_notes(group: Sequence[Part]) -> tuple[str, ...]:
    names = [label for part in group for label in part.labels[-1:]]
    where = positions(group[0].start, max(part.stop for part in group))
    return (f"{counted(len(names), 'part')} too small to draw apart", where, listed(names, _MAX_NAMES))
