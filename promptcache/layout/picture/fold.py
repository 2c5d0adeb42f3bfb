"""One line of the picture: what lies between two positions, cut at both ends.

Comes in: boxes and marks. Goes out: the same, as far as they reach into the line. This file knows no pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from promptcache.layout.picture.parts import Box, Mark, Part, Section


def cut(box: Box, start: int, stop: int) -> Box:
    """Return what of `box` lies at `[start, stop)`; rows that do not reach there are left out.

    What takes no positions is kept on the line where it begins, or on the last one that its box has.
    """
    if start <= box.start and box.stop <= stop:
        return box
    rows = (tuple(_cut_row(row, start, stop, box.stop)) for row in box.rows)
    return replace(
        box,
        start=max(box.start, start),
        stop=min(box.stop, stop),
        rows=tuple(row for row in rows if row),
        is_continued=box.is_continued or box.start < start,
    )


def _cut_row(parts: Iterable[Part], start: int, stop: int, end: int) -> Iterator[Part]:
    for part in parts:
        if part.start == part.stop:
            if start <= part.start < stop or part.start == stop == end:
                yield part
        elif part.start < stop and part.stop > start:
            yield _cut_mark(part, start, stop) if isinstance(part, Mark) else cut(part, start, stop)


def _cut_mark(mark: Mark, start: int, stop: int) -> Mark:
    if start <= mark.start and mark.stop <= stop:
        return mark
    sections = tuple(
        Section(start=max(section.start, start), stop=min(section.stop, stop), look=section.look)
        for section in mark.sections
        if section.start < stop and section.stop > start
    )
    return replace(mark, start=max(mark.start, start), stop=min(mark.stop, stop), sections=sections)
