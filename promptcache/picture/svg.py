"""SVG of a tree: its lines on one sheet, for documents and for viewers that show no HTML."""

from __future__ import annotations

import re

from lxml import etree

from promptcache.picture.draw import STYLE, add, axis, bar, grouped_lines, legend, name, num_tokens, shown
from promptcache.picture.part import Part, facts

_WIDTH, _MARGIN, _LINE = 800, 12, 22
_LEFT, _BAR = 212, 516  # start and width of the bars, in pixels
_CHAR = 6.6  # about the width of a character
_COLOUR = re.compile(r"light-dark\((#\w+), (#\w+)\)")


def svg_picture(root: Part) -> str:
    """Return one SVG document without scripts or external resources.

    Its style has literal colours, because several viewers do not know `light-dark`.
    """
    svg = etree.Element("svg", {"class": "promptcache", "role": "img", "width": f"{_WIDTH}"})
    light, dark = (_COLOUR.sub(rf"\{scheme}", STYLE) for scheme in (1, 2))
    add(svg, "style", f"{light}@media (prefers-color-scheme: dark) {{\n{dark}}}")
    add(svg, "rect", "", {"class": "paper", "width": "100%", "height": "100%"})
    _text(svg, _MARGIN, 24, shown(root.name), "head")
    _text(svg, _MARGIN, 42, shown(" · ".join(facts(root))), "faded")
    sheet = add(svg, "svg")  # the lines, below the legend
    stop = root.stop + 1  # the first generated token included
    _place(sheet, axis(0, stop), 0)
    height = _LINE
    for lines in grouped_lines(root):
        is_present = any(line.part.present for line in lines)
        names = add(sheet, "svg", "", {"width": f"{_LEFT - 6}"})  # cuts what is too long
        _text(names, _MARGIN, height + 13, name(lines), "" if is_present else "faded")
        _place(sheet, bar(lines, 0, stop), height)
        _text(sheet, _WIDTH - _MARGIN, height + 13, num_tokens(lines), "faded number")
        height += _LINE
    x, y = float(_MARGIN), 52
    for style, meaning in legend(sheet):
        width = 18 + len(meaning) * _CHAR + 14
        if x + width > _WIDTH:
            x, y = float(_MARGIN), y + 18
        add(svg, "rect", "", {"class": style, "x": f"{x:g}", "y": f"{y}", "width": "12", "height": "12"})
        _text(svg, x + 18, y + 11, meaning, "")
        x += width
    sheet.set("y", f"{y + 24}")
    svg.set("height", f"{y + 24 + height + _MARGIN}")
    svg.set("viewBox", f"0 0 {_WIDTH} {svg.get('height')}")
    svg.set("xmlns", "http://www.w3.org/2000/svg")
    return etree.tostring(svg, encoding="unicode")


def _place(sheet: etree._Element, drawn: etree._Element, y: int) -> None:
    drawn.attrib.update({"x": f"{_LEFT}", "y": f"{y}", "width": f"{_BAR}", "height": "18"})
    sheet.append(drawn)


def _text(parent: etree._Element, x: float, y: int, text: str, style: str) -> None:
    add(parent, "text", text, {"class": style, "x": f"{x:g}", "y": f"{y}"})
