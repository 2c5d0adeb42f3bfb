"""How many pixels a position gets, and over how many lines the positions are wrapped.

Comes in: what is to be shown, and the width of the picture. Goes out: a scale. This file does not know how high
anything is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor, log10

from promptcache.layout.picture.excerpt import columns
from promptcache.layout.picture.parts import Box, BoxKind, MarkKind, Part

MARGIN = 14.0
CHAR_WIDTH = 0.61  # of the size of a monospaced font; the widest common one has 0.602
TITLE_FONT, MARK_FONT = 11.0, 10.0
LABEL_PAD = 4.0

_MIN_WIDTH = 240
_MAX_LINES = 160
_WANTED_COLUMNS = 12  # of a label, to be worth a line more
_SERVED = 0.6  # so large a part of the labels gets the room that it wants
_TICK_DISTANCE = 64.0
_NICE = (1, 2, 5, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Positions to pixels; line `n` shows the positions from `n * per_line` on."""

    width: float
    stop: int
    per_line: int

    @property
    def pixels(self) -> float:
        """Pixels for one position."""
        return (self.width - 2 * MARGIN) / self.per_line

    @property
    def lines(self) -> Iterator[tuple[int, int]]:
        """The positions `[start, stop)` of every line."""
        for start in range(0, self.stop, self.per_line):
            yield start, min(start + self.per_line, self.stop)

    @property
    def tick_step(self) -> int:
        """Positions between two marks of the axis."""
        return _nice(ceil(_TICK_DISTANCE / self.pixels))

    def x(self, position: int, line_start: int) -> float:
        """Return where a position begins on the line that starts at `line_start`."""
        return MARGIN + (position - line_start) * self.pixels


def wanted_lines(root: Box, width: int) -> int:
    """Return how many lines give most modules and slots room for their names, within reason."""
    wanted = sorted(_wanted(root))
    pixels = wanted[floor(len(wanted) * _SERVED)] if wanted else 0.0
    return min(max(1, ceil(root.stop * pixels / (_at_least(width) - 2 * MARGIN))), _MAX_LINES)


def make_scale(root: Box, width: int, num_lines: int) -> Scale:
    """Spread the positions evenly over lines; where there are several, each starts at a round position."""
    per_line = ceil(root.stop / num_lines)
    return Scale(width=_at_least(width), stop=root.stop, per_line=per_line if num_lines == 1 else _round_up(per_line))


def _at_least(width: int) -> int:
    return max(width, _MIN_WIDTH)


def _wanted(part: Part) -> Iterator[float]:
    """Yield the pixels for one position that would show the names of modules and slots."""
    if isinstance(part, Box):
        for each in part.parts:
            yield from _wanted(each)
    is_named = part.kind in (BoxKind.MODULE, MarkKind.SLOT)
    if is_named and part.start < part.stop:
        room = min(columns(part.labels[-1]), _WANTED_COLUMNS) * CHAR_WIDTH * TITLE_FONT + 2 * LABEL_PAD
        yield room / (part.stop - part.start)


def _nice(number: int) -> int:
    """Return the least of 1, 2, 5, 10, 20, 50, … that is not below `number`."""
    magnitude = int(10 ** floor(log10(max(number, 1))))
    return next(digit * magnitude for digit in _NICE if digit * magnitude >= number)


def _round_up(number: int) -> int:
    """Round up to two digits, so that lines start at round positions."""
    step = int(10 ** max(0, floor(log10(number)) - 1))
    return ceil(number / step) * step
