"""Draw a chart as SVG: one document without scripts, fonts or other external resources.

Folded lines are drawn closed, so thousands of modules fit into an overview. All text is added through the element
tree, so text cannot become markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, floor, log10

from lxml import etree

from promptcache.picture.chart import Chart, ChartLine, LineKind, Look, Mark, indices, looks_of
from promptcache.picture.style import FONT_SIZE, ROOT_CLASS, legend, svg_style
from promptcache.picture.text import columns, fit, shown, wrap

MARGIN = 16.0
CHAR_WIDTH = 0.61 * FONT_SIZE  # of a monospaced font; the widest common one has 0.602
_SVG = "http://www.w3.org/2000/svg"
_MIN_WIDTH = 240
_LINE, _BAR = 22.0, 18.0
_NARROW, _NAME_LINE = 560, 16.0  # below this width names are above their bars
_INDENT, _PAD = 12.0, 4.0
_MIN_PIXELS = 2.0  # keeps every mark visible
_NAMES, _MAX_NAMES = 0.24, 260.0  # column of names: a share of the width, and a maximum in pixels
_TICK_PIXELS = 64.0


class _Geometry:
    """Places of names and positions, in pixels. In a narrow picture each name is above its bar."""

    def __init__(self, width: int, stop: int) -> None:
        self.width = float(max(width, _MIN_WIDTH))
        self.is_narrow = self.width < _NARROW
        self.left = MARGIN if self.is_narrow else MARGIN + min((self.width - 2 * MARGIN) * _NAMES, _MAX_NAMES)
        self.bar = _NAME_LINE if self.is_narrow else 0.0  # from the top of a line
        self.line = _LINE + self.bar
        self.names = self.width - 2 * MARGIN if self.is_narrow else self.left - MARGIN - _PAD
        self.pixels = (self.width - MARGIN - self.left) / stop

    def x(self, position: int) -> float:
        """Return the x coordinate of the start of a position."""
        return self.left + position * self.pixels


def svg_element(chart: Chart, width: int) -> etree._Element:
    """Return the picture as an `svg` element of a fixed width."""
    at = _Geometry(width, chart.stop)
    root = etree.Element(f"{{{_SVG}}}svg", nsmap={None: _SVG})
    _add(root, "style").text = svg_style(chart.num_contexts)
    _patterns(root)
    paper = _add(root, "rect", {"class": "paper", "width": "100%", "height": "100%"})
    room = floor((at.width - 2 * MARGIN) / CHAR_WIDTH)
    _text(root, MARGIN, 24, fit([chart.title], room), "head")
    y = 42.0
    for facts in wrap(chart.summary.split(" · "), room):
        _text(root, MARGIN, y, facts, "faded")
        y += 16
    y = _legend(root, chart, at, y - 4)
    lines = list(_visible(chart.lines))
    _axis(root, at, chart.stop, y, y + 20 + len(lines) * at.line)
    y += 22
    for line, depth in lines:
        _line(root, line, depth, at, y)
        y += at.line
    height = y + MARGIN
    paper.set("height", number(height))
    attributes = {
        "class": ROOT_CLASS,
        "role": "img",
        "width": number(at.width),
        "height": number(height),
        "viewBox": f"0 0 {number(at.width)} {number(height)}",
        "data-left": number(at.left),
        "data-stop": str(chart.stop),
    }
    for name, value in attributes.items():
        root.set(name, value)
    return root


def tick_step(stop: int, max_ticks: int) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, 50, … that gives at most `max_ticks` ticks."""
    least = max(1, ceil(stop / max(1, max_ticks)))
    magnitude = 10 ** floor(log10(least))
    return int(next(digit * magnitude for digit in (1, 2, 5, 10) if digit * magnitude >= least))


def number(value: float) -> str:
    """Return a number as text with at most two digits after the point."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _visible(lines: Sequence[ChartLine], depth: int = 0) -> Iterator[tuple[ChartLine, int]]:
    for line in lines:
        yield line, depth
        if line.is_open:
            yield from _visible(line.children, depth + 1)


def _axis(root: etree._Element, at: _Geometry, stop: int, y: float, bottom: float) -> None:
    """Draw a line and a label for round positions."""
    step = tick_step(stop, floor((at.width - MARGIN - at.left) / _TICK_PIXELS))
    ticks = range(0, stop + 1, step)
    path = "".join(f"M{number(at.x(position))} {number(y)}V{number(bottom)}" for position in ticks)
    _add(root, "path", {"class": "axis", "d": path})
    for position in ticks:
        name = f"{position:,}"
        if at.x(position) + columns(name) * CHAR_WIDTH + _PAD <= at.width:
            _text(root, at.x(position) + _PAD, y + 12, name, "faded")


def _line(root: etree._Element, line: ChartLine, depth: int, at: _Geometry, y: float) -> None:
    """Draw a line: its name, the bar of its whole extent, and its own texts and slots over the bar."""
    hidden = [] if line.is_open else [each for each in line.everything if each is not line]
    inside = [mark for each in hidden for mark in each.marks]
    context = "" if line.sees is None else f" s{line.sees}"
    targets = "".join(f" t{number}" for number in line.seen_in)
    group = _add(root, "g", {"class": f"row{context}{targets}"})
    title = _add(group, "g", dict(indices([line, *hidden], inside)))
    _add(title, "title").text = "\n".join(map(shown, line.notes))
    width = at.width - 2 * MARGIN + 2 * _PAD
    _rect(title, MARGIN - _PAD, y, width, at.line, "back")
    _rect(title, at.x(line.start), y + at.bar + 2, (line.stop - line.start) * at.pixels, _BAR, extent_style(line))
    room = floor((at.names - depth * _INDENT) / CHAR_WIDTH)
    sign = "" if line.is_open else "▸ "
    label = fit([sign + label for label in line.labels], max(room, 0), keep_end=line.kind is not LineKind.UNION)
    style = "title" if line.present else "title faded"
    _text(title, MARGIN + depth * _INDENT, y + (12 if at.is_narrow else 15), label, style)
    for mark in line.marks:
        _mark(group, mark, at, y + at.bar + 2)


def _mark(parent: etree._Element, mark: Mark, at: _Geometry, y: float) -> None:
    group = _add(parent, "g", dict(indices((), [mark])))
    _add(group, "title").text = "\n".join(map(shown, mark.notes))
    x, width = at.x(mark.start), (mark.stop - mark.start) * at.pixels
    inset = 0.5 if width >= 4 else 0.0
    style = mark_style(mark)
    _rect(group, x + inset, y, width - 2 * inset, _BAR, style)
    for section in mark.sections:
        _rect(group, at.x(section.start), y + 1, (section.stop - section.start) * at.pixels, _BAR - 2, section.look)
    is_slot = mark.look is Look.SLOT
    room = floor((width - 2 * _PAD) / CHAR_WIDTH)
    label = fit(mark.labels, room, keep_end=is_slot) if room > 0 and any(mark.labels) else ""
    faded = " faded" if not mark.present else ""
    _text(group, x + _PAD, y + 13, label, f"{'name' if is_slot and mark.present else 'words'}{faded}")


def extent_style(line: ChartLine) -> str:
    """Return the classes of the bar from the start to the stop of a line."""
    if line.is_open or line.kind is not LineKind.FOLD:
        return line.kind if line.present else f"{line.kind} absent"
    looks = {look for each in line.everything for mark in each.marks for look in looks_of(mark)}
    used = (look for look in (Look.REUSED, Look.REPAIRED, Look.NEW) if look in looks)
    return next(used, "fold" if line.present else "fold absent")


def mark_style(mark: Mark) -> str:
    """Return the classes of a mark."""
    look = mark.look
    return look if mark.present or look is Look.ABSENT else f"{look} absent"


def _legend(root: etree._Element, chart: Chart, at: _Geometry, y: float) -> float:
    """Draw the legend and return the y coordinate of its end."""
    x = MARGIN
    for style, meaning in legend(chart.looks):
        room = floor((at.width - 2 * MARGIN - 18) / CHAR_WIDTH)
        words = fit([meaning], room, keep_end=False)
        width = 18 + columns(words) * CHAR_WIDTH
        if x > MARGIN and x + width > at.width - MARGIN:
            x, y = MARGIN, y + 18
        group = _add(root, "g", {"class": "legend"})
        _rect(group, x, y, 12, 12, style)
        _text(group, x + 18, y + 10, words, "")
        x += width + 16
    return y + 24


def _patterns(root: etree._Element) -> None:
    """Define the pattern of slots (stripes) and of gaps (dots)."""
    definitions = _add(root, "defs")
    stripes = _pattern(definitions, "promptcache-stripes", 7)
    _add(stripes, "rect", {"class": "slot-paper", "width": "7", "height": "7"})
    _add(stripes, "path", {"class": "stripe", "d": "M-1 1L1 -1M0 7L7 0M6 8L8 6"})
    dots = _pattern(definitions, "promptcache-dots", 5)
    _add(dots, "circle", {"class": "dot", "cx": "2.5", "cy": "2.5", "r": "0.8"})


def _pattern(definitions: etree._Element, name: str, size: int) -> etree._Element:
    size_of = {"width": str(size), "height": str(size)}
    return _add(definitions, "pattern", {"id": name, "patternUnits": "userSpaceOnUse", **size_of})


def _rect(parent: etree._Element, x: float, y: float, width: float, height: float, style: str) -> None:
    size = {"width": number(max(width, _MIN_PIXELS)), "height": number(height)}
    _add(parent, "rect", {"class": style, "x": number(x), "y": number(y), **size})


def _text(parent: etree._Element, x: float, y: float, text: str, style: str) -> None:
    if text:
        _add(parent, "text", {"class": style, "x": number(x), "y": number(y)}).text = text


def _add(parent: etree._Element, name: str, attributes: Mapping[str, str] | None = None) -> etree._Element:
    return etree.SubElement(parent, f"{{{_SVG}}}{name}", dict(attributes or {}))
