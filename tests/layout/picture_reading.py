"""Reads a picture back: where on the page everything stands, by what the SVG itself says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from lxml import etree

from promptcache.layout import Layout, layout_svg, run_states
from promptcache.layout.picture.excerpt import columns
from promptcache.layout.picture.scale import CHAR_WIDTH, MARGIN

SVG = "{http://www.w3.org/2000/svg}"
_FONTS = {"title": 11.0, "head": 14.0}
_SMALL_FONT = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rect:
    """A rectangle on the page, and the line of positions that it belongs to."""

    x: float
    y: float
    width: float
    height: float
    line: int
    style: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A part of the picture: its outline, what it names of the layout, and what hovering tells."""

    outline: Rect
    modules: frozenset[int]
    runs: frozenset[int]
    slots: frozenset[int]
    notes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """A label: where it begins, and how far it may reach."""

    x: float
    y: float
    stop: float
    text: str


class Picture:
    """A picture as read from its text."""

    def __init__(self, text: str) -> None:
        self.root = etree.fromstring(text)
        self.per_line = int(self.root.get("data-positions-per-line"))
        self.width = float(self.root.get("width"))
        self._axes = [
            float(re.match(r"M\S+ (\S+?)H", path.get("d"))[1])
            for path in self.root.iter(f"{SVG}path")
            if path.get("class") == "axis"
        ]

    def x(self, position: int, line: int) -> float:
        """Where a position begins on a line."""
        return MARGIN + (position - line * self.per_line) * (self.width - 2 * MARGIN) / self.per_line

    def lines(self, start: int, stop: int) -> Iterator[tuple[int, float, float]]:
        """Every line that shows some of the positions `[start, stop)`, and from where to where."""
        for line in range(start // self.per_line, max(stop - 1, start) // self.per_line + 1):
            first = max(start, line * self.per_line)
            yield line, self.x(first, line), self.x(min(stop, (line + 1) * self.per_line), line)

    def groups(self) -> Iterator[Group]:
        """Every part of the picture, the legend left out."""
        for group in self.root.iter(f"{SVG}g"):
            title = group.find(f"{SVG}title")
            if title is not None:
                outline = self._rect(group.find(f"{SVG}rect"))
                named = (_indices(group.get(f"data-{name}")) for name in ("modules", "runs", "slots"))
                modules, runs, slots = named
                yield Group(outline=outline, modules=modules, runs=runs, slots=slots, notes=title.text)

    def words(self) -> Iterator[Words]:
        """Every label of the picture: parts, axis, head and legend."""
        for text in self.root.iter(f"{SVG}text"):
            font = _FONTS.get(text.get("class").split()[0], _SMALL_FONT)
            x, width = float(text.get("x")), columns(text.text) * CHAR_WIDTH * font
            yield Words(x=x, y=float(text.get("y")), stop=x + width, text=text.text)

    def overlapping(self) -> list[tuple[str, str]]:
        """Labels that stand on the same height and reach into each other."""
        rows: dict[float, list[Words]] = {}
        for words in self.words():
            rows.setdefault(words.y, []).append(words)
        found = []
        for row in rows.values():
            row.sort(key=lambda words: words.x)
            found += [(left.text, right.text) for left, right in pairwise(row) if left.stop > right.x]
        heights = sorted(rows)
        found += [
            (rows[above][0].text, rows[below][0].text)
            for above, below in pairwise(heights)
            if below - above < 10 and _meet(rows[above], rows[below])
        ]
        return found

    def _rect(self, rect: etree._Element) -> Rect:
        x, y, width, height = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
        line = sum(axis <= y for axis in self._axes) - 1
        return Rect(x=x, y=y, width=width, height=height, line=line, style=rect.get("class"))


def drawn(layout: Layout, width: int = 1000) -> Picture:
    """Draw a layout, and read the picture back."""
    return Picture(layout_svg(layout, run_states(layout), width=width))


def _meet(above: list[Words], below: list[Words]) -> bool:
    return any(a.x < b.stop and b.x < a.stop for a in above for b in below)


def _indices(written: str | None) -> frozenset[int]:
    if written is None:
        return frozenset()
    first, _, last = written.partition("-")
    return frozenset(range(int(first), int(last or first) + 1))
