"""Draw lines of a tree: the bars of parts on one scale, an axis, and a legend. SVG files and HTML share these shapes.

A bar is an `svg` element with places in percent. It needs no style attribute, so pages with a strict policy show it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import ceil, log10
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from lxml import etree

from promptcache.diagnostics import ROOT
from promptcache.picture.part import Part, PartKind, Use, title

STYLE = Path(__file__).with_name("picture.css").read_text(encoding="utf-8")
"""Colours of all shapes, for light and dark surroundings."""

_MEANINGS = {
    "cached": "text, encoded once",
    "frame": "turn header or footer, BOS",
    "together": "encoded once more, together",
    "uncached": "not cached: new in every request",
    "reused": "reused",
    "repaired": "stored, and computed again",
    "new": "new in this prompt",
    "slot": "slot",
    "filler": "its filler while encoding",
    "next": "generation starts",
    "module": "module",
    "union": "union: members share their start",
    "turn": "chat turn",
    "scaffold": "scaffold",
    "fold": "folded: several parts",
}
"""Entries of the legend, in order."""

_MAX_LINES, _FOLDED_LINES = 120, 100
_LEAST_WIDTH, _LABEL_WIDTH = 0.25, 6.0  # in percent: every mark is visible, and labels have space
_MAX_LABEL = 100
_MAX_TICKS = 6
_INDENT = "\N{EM SPACE}"
_NONE: Mapping[str, str] = MappingProxyType({})


class Line(NamedTuple):
    """A part that has a line of its own, and its depth in the tree."""

    part: Part
    depth: int


def grouped_lines(root: Part) -> Iterator[Sequence[Line]]:
    """Yield the lines of a tree: each alone, or of very many, neighbours as one group.

    What a prompt uses stays alone if it is not too much.
    """
    lines = [line for line in _lines(root, 0) if line.part.kind is not PartKind.SCHEMA or line.part.tokens]
    is_prompt = any(part.kind is PartKind.PROMPT for part in root.children)
    shows_used = is_prompt and sum(line.part.present for line in lines) <= _MAX_LINES
    for is_alone, neighbours in groupby(lines, lambda line: shows_used and line.part.present):
        found, size = list(neighbours), 1 if is_alone or len(lines) <= _MAX_LINES else _FOLDED_LINES
        yield from (found[index : index + size] for index in range(0, len(found), size))


def _lines(part: Part, depth: int) -> Iterator[Line]:
    yield Line(part, depth)
    for child in part.children:
        if not child.kind.is_leaf:
            yield from _lines(child, depth if part.kind is PartKind.SCHEMA else depth + 1)


def extent(lines: Sequence[Line]) -> tuple[int, int]:
    """Return the positions of lines."""
    return min(line.part.start for line in lines), max(line.part.stop for line in lines)


def name(lines: Sequence[Line]) -> str:
    """Return the name of a line, indented, or of a group of lines."""
    names = [ROOT if part.kind is PartKind.SCHEMA else title(part).rpartition("/")[2] for part, _ in lines]
    if len(lines) == 1:
        return _INDENT * lines[0].depth + shown(names[0])
    return shown(f"{names[0]} … {names[-1]} ({len(lines):,} parts)")


def num_tokens(lines: Sequence[Line]) -> str:
    """Return the number of tokens of lines in words; nothing for none."""
    number = sum(line.part.num_tokens for line in lines)
    return f"{number:,}" if number else ""


def bar(lines: Sequence[Line], start: int, stop: int) -> etree._Element:
    """Return the bar of a line, or of a group of lines, for the positions `[start, stop)`."""
    drawn = etree.Element("svg", {"class": "lane"})
    scale = 100 / (stop - start)
    part, (first, last) = lines[0].part, extent(lines)
    if not any(line.part.present for line in lines):
        add(drawn, "text", "not in this prompt", {"class": "faded", "x": "3", "y": "13"})
        return drawn

    def place(begin: int, end: int) -> dict[str, str]:
        width = max((end - begin) * scale, _LEAST_WIDTH)
        return {"x": f"{(begin - start) * scale:.6g}%", "width": f"{width:.6g}%"}

    def rect(style: str, begin: int, end: int, height: int = 16) -> None:
        size = {"y": f"{(18 - height) / 2:g}", "height": f"{height}"}
        add(drawn, "rect", "", {"class": style, **place(begin, end), **size})

    rect(part.kind if len(lines) == 1 else "fold", first, last, 18)
    if len(lines) > 1:
        return drawn
    for leaf in (part, *part.leaves):
        if leaf.kind is PartKind.SLOT:
            rect("slot", leaf.start, leaf.stop)
        for begin, end, use in leaf.stretches:
            rect("frame" if leaf.kind is PartKind.FRAME and use is Use.CACHED else use, begin, end)
        label = f"{leaf.name}: {leaf.text}".removesuffix(": ") if leaf.kind is PartKind.SLOT else leaf.text
        if label and (leaf.stop - leaf.start) * scale >= _LABEL_WIDTH:
            room = add(drawn, "svg", "", place(leaf.start, leaf.stop))
            add(room, "text", shown(label.strip()[:_MAX_LABEL]), {"x": "3", "y": "13"})
    if part.kind is PartKind.PROMPT:
        rect("next", part.stop, part.stop + 1)
    return drawn


def axis(start: int, stop: int) -> etree._Element:
    """Return an axis with ticks at round positions."""
    drawn = etree.Element("svg", {"class": "lane"})
    least = max(1, ceil((stop - start) / _MAX_TICKS))
    magnitude = 10 ** int(log10(least))
    step = next(digit * magnitude for digit in (1, 2, 5, 10) if digit * magnitude >= least)
    for position in range(-(-start // step) * step, stop - (stop - start) // 20, step):
        x = f"{100 * (position - start) / (stop - start):.6g}%"
        add(drawn, "rect", "", {"class": "axis", "x": x, "width": "1", "height": "18"})
        add(add(drawn, "svg", "", {"x": x}), "text", f"{position:,}", {"class": "faded", "x": "4", "y": "13"})
    return drawn


def legend(drawn: etree._Element) -> Iterator[tuple[str, str]]:
    """Yield the style and the meaning of everything that is drawn in an element."""
    styles = {rect.get("class") for rect in drawn.iter("rect")}
    return ((style, meaning) for style, meaning in _MEANINGS.items() if style in styles)


def add(parent: etree._Element, tag: str, text: str = "", attributes: Mapping[str, str] = _NONE) -> etree._Element:
    """Add an element with a text, which cannot become markup."""
    element = etree.SubElement(parent, tag, dict(attributes))
    if text:
        element.text = text
    return element


def shown(text: str) -> str:
    """Return a text in one line, with signs for characters that XML or a font does not have."""
    signs = (char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return "".join(signs)
