"""A picture as shapes at pixels: what the SVG is written from, and what tests measure.

Comes in: nothing; `place` builds these. Goes out: to `svg`. This file knows no positions and no XML.
"""

from __future__ import annotations

from dataclasses import dataclass

from promptcache.layout.picture.parts import Covers


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """A rectangle in one style."""

    x: float
    y: float
    width: float
    height: float
    style: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A line of text that starts at `x` on the baseline `y`, shortened to the room it has."""

    x: float
    y: float
    text: str
    style: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A part of the picture: rectangles, the first of which is its outline, perhaps a label, and words to hover."""

    fills: tuple[Fill, ...]
    label: Label | None
    notes: tuple[str, ...]
    covers: Covers

    @property
    def num_bytes(self) -> int:
        """About how many bytes of SVG it makes."""
        words = sum(len(note.encode()) for note in self.notes)
        return 70 + words + 75 * len(self.fills) + (0 if self.label is None else 60 + len(self.label.text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of positions: its axis at height `y`, with the place and the name of every tick."""

    y: float
    stop_x: float
    ticks: tuple[tuple[float, str], ...]
    shapes: tuple[Shape, ...]
