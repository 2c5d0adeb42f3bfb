"""Reads a picture back: where everything is on the page, by what the SVG itself says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from lxml import etree

from promptcache.layout import Layout
from promptcache.picture import layout_svg
from promptcache.picture.svg import CHAR_WIDTH, MARGIN
from promptcache.picture.text import columns

SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rect:
    """A rectangle on the page."""

    x: float
    y: float
    width: float
    height: float
    style: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A part of the picture: its outline, the part of the layout that it names, and its tooltip."""

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
        self.width = float(self.root.get("width"))
        self.height = float(self.root.get("height"))
        self._left = float(self.root.get("data-left"))
        self._stop = int(self.root.get("data-stop"))

    def x(self, position: int) -> float:
        """Return the x coordinate at which a position begins."""
        return self._left + position * (self.width - MARGIN - self._left) / self._stop

    def groups(self) -> Iterator[Group]:
        """Every part of the picture, the legend left out."""
        for group in self.root.iter(f"{SVG}g"):
            title = group.find(f"{SVG}title")
            if title is not None:
                outline = next(rect for rect in group.iter(f"{SVG}rect") if rect.get("class") != "back")
                named = (_indices(group.get(f"data-{name}")) for name in ("modules", "runs", "slots"))
                modules, runs, slots = named
                yield Group(outline=_rect(outline), modules=modules, runs=runs, slots=slots, notes=title.text or "")

    def words(self) -> Iterator[Words]:
        """Every label of the picture: parts, axis, head and legend."""
        for text in self.root.iter(f"{SVG}text"):
            x = float(text.get("x"))
            yield Words(x=x, y=float(text.get("y")), stop=x + columns(text.text) * CHAR_WIDTH, text=text.text)

    def overlapping(self) -> list[tuple[str, str]]:
        """Return labels at the same height that overlap."""
        lines: dict[float, list[Words]] = {}
        for words in self.words():
            lines.setdefault(words.y, []).append(words)
        found = []
        for line in lines.values():
            line.sort(key=lambda words: words.x)
            found += [(left.text, right.text) for left, right in pairwise(line) if left.stop > right.x]
        heights = sorted(lines)
        found += [
            (lines[above][0].text, lines[below][0].text)
            for above, below in pairwise(heights)
            if below - above < 10 and _meet(lines[above], lines[below])
        ]
        return found


def drawn(layout: Layout, width: int = 1000) -> Picture:
    """Draw a layout, and read the picture back."""
    return Picture(layout_svg(layout, width=width))


def _rect(rect: etree._Element) -> Rect:
    x, y, width, height = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
    return Rect(x=x, y=y, width=width, height=height, style=rect.get("class"))


def _meet(above: list[Words], below: list[Words]) -> bool:
    return any(a.x < b.stop and b.x < a.stop for a in above for b in below)


def _indices(written: str | None) -> frozenset[int]:
    if written is None:
        return frozenset()
    first, _, last = written.partition("-")
    return frozenset(range(int(first), int(last or first) + 1))
