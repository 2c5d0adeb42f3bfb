"""A drawing as SVG: one element tree without scripts, fonts or anything else from outside.

Comes in: a drawing. Goes out: an `svg` element. All text goes through the tree, so that none of it can become markup.
This file does not know what is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lxml import etree

from promptcache.layout.picture.drawing import Drawing
from promptcache.layout.picture.excerpt import columns, fit, shown
from promptcache.layout.picture.legend import entries
from promptcache.layout.picture.palette import ROOT_CLASS, style_sheet
from promptcache.layout.picture.scale import CHAR_WIDTH, MARGIN, MARK_FONT
from promptcache.layout.picture.shapes import Fill, Label, Line, Shape

_SVG = "http://www.w3.org/2000/svg"
_HEAD_COLUMNS = 8.6  # pixels of a character of the title
_LEGEND_ROW, _SWATCH = 18.0, 12.0
_TICK = 4.0


def svg_element(drawing: Drawing) -> etree._Element:
    """Return the picture as an `svg` element."""
    width = drawing.scale.width
    root = etree.Element(f"{{{_SVG}}}svg", nsmap={None: _SVG})
    style = _add(root, "style")
    style.text = style_sheet()
    _patterns(root)
    paper = _add(root, "rect", {"class": "paper", "width": "100%", "height": "100%"})
    _head(root, drawing)
    for line in drawing.lines:
        _axis(root, line)
        for shape in line.shapes:
            _shape(root, shape)
    height = _legend(root, drawing)
    paper.set("height", _number(height))
    attributes = {
        "class": ROOT_CLASS,
        "role": "img",
        "width": _number(width),
        "height": _number(height),
        "viewBox": f"0 0 {_number(width)} {_number(height)}",
        "data-positions-per-line": str(drawing.scale.per_line),
    }
    for name, value in attributes.items():
        root.set(name, value)
    return root


def _head(root: etree._Element, drawing: Drawing) -> None:
    """Write the schema's name and what is said about the whole."""
    room = drawing.scale.width - 2 * MARGIN
    title = fit([drawing.title], int(room / _HEAD_COLUMNS))
    summary = fit([drawing.summary], int(room / (CHAR_WIDTH * MARK_FONT)), keep_end=False)
    _text(root, Label(x=MARGIN, y=20, text=title, style="head"))
    _text(root, Label(x=MARGIN, y=36, text=summary, style="summary faded"))


def _axis(root: etree._Element, line: Line) -> None:
    """Draw the axis above a line of positions."""
    y = line.y + 17
    path = [f"M{_number(MARGIN)} {_number(y)}H{_number(line.stop_x)}"]
    path += [f"M{_number(x)} {_number(y)}v{_number(-_TICK)}" for x, _ in line.ticks]
    _add(root, "path", {"class": "axis", "d": "".join(path)})
    for x, name in line.ticks:
        if name:
            _text(root, Label(x=x + 2, y=y - _TICK, text=name, style="tick faded"))


def _shape(root: etree._Element, shape: Shape) -> None:
    """Draw a part: its words belong to the group, so that they show wherever the pointer rests on it."""
    group = _add(root, "g", dict(_covers(shape)))
    if shape.notes:
        title = _add(group, "title")
        title.text = "\n".join(map(shown, shape.notes))
    for fill in shape.fills:
        _rect(group, fill)
    if shape.label is not None:
        _text(group, shape.label)


def _covers(shape: Shape) -> Iterator[tuple[str, str]]:
    """Yield what a part shows of the layout, by indices in document order: "3" or "3-9"."""
    covers = shape.covers
    for name, indices in (("modules", covers.modules), ("runs", covers.runs), ("slots", covers.slots)):
        if indices:
            yield f"data-{name}", f"{indices[0]}-{indices[-1]}" if len(indices) > 1 else f"{indices[0]}"


def _legend(root: etree._Element, drawing: Drawing) -> float:
    """Draw the legend below the lines and return where it ends."""
    x, y = MARGIN, drawing.bottom
    max_columns = int((drawing.scale.width - 2 * MARGIN - _SWATCH - 6) / (CHAR_WIDTH * MARK_FONT))
    for style, words in entries({fill.style for shape in drawing.shapes for fill in shape.fills}):
        meaning = fit([words], max_columns, keep_end=False)
        width = _SWATCH + 6 + columns(meaning) * CHAR_WIDTH * MARK_FONT
        if x > MARGIN and x + width > drawing.scale.width - MARGIN:
            x, y = MARGIN, y + _LEGEND_ROW
        group = _add(root, "g")
        _rect(group, Fill(x=x, y=y, width=_SWATCH, height=_SWATCH, style=style))
        _text(group, Label(x=x + _SWATCH + 6, y=y + 10, text=meaning, style="legend"))
        x += width + 16
    return y + _LEGEND_ROW + MARGIN / 2


def _patterns(root: etree._Element) -> None:
    """Define the stripes of slots and the dots of gaps."""
    definitions = _add(root, "defs")
    stripes = _pattern(definitions, "promptcache-stripes", 7)
    _add(stripes, "rect", {"class": "slot-paper", "width": "7", "height": "7"})
    _add(stripes, "path", {"class": "stripe", "d": "M-1 1L1 -1M0 7L7 0M6 8L8 6"})
    dots = _pattern(definitions, "promptcache-dots", 5)
    _add(dots, "circle", {"class": "dot", "cx": "2.5", "cy": "2.5", "r": "0.8"})


def _pattern(definitions: etree._Element, name: str, size: int) -> etree._Element:
    size_of = {"width": str(size), "height": str(size)}
    return _add(definitions, "pattern", {"id": name, "patternUnits": "userSpaceOnUse", **size_of})


def _rect(parent: etree._Element, fill: Fill) -> None:
    _add(
        parent,
        "rect",
        {
            "class": fill.style,
            "x": _number(fill.x),
            "y": _number(fill.y),
            "width": _number(fill.width),
            "height": _number(fill.height),
        },
    )


def _text(parent: etree._Element, label: Label) -> None:
    element = _add(parent, "text", {"class": label.style, "x": _number(label.x), "y": _number(label.y)})
    element.text = label.text


def _add(parent: etree._Element, name: str, attributes: Mapping[str, str] | None = None) -> etree._Element:
    return etree.SubElement(parent, f"{{{_SVG}}}{name}", dict(attributes or {}))


def _number(value: float) -> str:
    """Write a number of pixels with at most two digits after the point."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
