"""How high boxes and marks are drawn, and how high a line of them gets.

Comes in: parts. Goes out: pixels. This file draws nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from promptcache.layout.picture.parts import Mark, Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Heights:
    """How high a box's title and a mark are, in pixels, and the room below each row in a box.

    A title or a mark that is lower than its font has no label.
    """

    title: float
    mark: float
    pad: float


ROOMY = Heights(title=16, mark=20, pad=3)
DENSE = Heights(title=13, mark=6, pad=1)
COMPACT = Heights(title=12, mark=3, pad=0)
TINY = Heights(title=4, mark=3, pad=1)


def rows_height(rows: Sequence[Sequence[Part]], heights: Heights, min_positions: float) -> float:
    """Return how high rows get below each other; boxes of fewer than `min_positions` are closed."""
    return sum(max(_height(part, heights, min_positions) for part in row) + heights.pad for row in rows)


def _height(part: Part, heights: Heights, min_positions: float) -> float:
    if isinstance(part, Mark):
        return heights.mark
    is_open = part.stop - part.start >= min_positions
    inside = rows_height(part.rows, heights, min_positions) if is_open else 0.0
    return heights.title + max(inside, heights.mark)
