"""The picture of a layout: the slot map drawn to scale, as SVG or as a page.

Comes in: a layout with its encodings, perhaps the plan of a prompt. Goes out: text that shows itself in any browser.
The way: measure (what to draw) -> make_scale, cut (lines) -> Placer (shapes in pixels) -> svg_element.
"""

from __future__ import annotations

from collections.abc import Sequence

from lxml import etree

from promptcache.layout.picture.drawing import draw
from promptcache.layout.picture.html import html_page
from promptcache.layout.picture.svg import svg_element
from promptcache.layout.types import Layout, Plan, RunState

__all__ = ["layout_html", "layout_svg"]


def layout_svg(
    layout: Layout,
    states: Sequence[RunState],
    *,
    plan: Plan | None = None,
    token_bytes: int | None = None,
    width: int = 1000,
) -> str:
    """Draw a layout to scale: positions from left to right, union members below each other, slots hatched.

    Args:
        layout: What is drawn.
        states: What `run_states(layout)` returned: they say what each run may see.
        plan: Of a prompt against this layout: what it reuses, what is new, what is absent.
        token_bytes: KV of one token, where it is to be told.
        width: Of the picture, in pixels; positions that do not fit side by side go to further lines.

    Returns:
        One SVG document, without scripts or anything from outside; what a part holds shows while the pointer rests
        on it.
    """
    return etree.tostring(svg_element(draw(layout, states, plan, token_bytes, width)), encoding="unicode")


def layout_html(
    layout: Layout,
    states: Sequence[RunState],
    *,
    plan: Plan | None = None,
    token_bytes: int | None = None,
    width: int = 1000,
) -> str:
    """Return the picture of `layout_svg` as a page of its own, with a table of the slots."""
    return html_page(svg_element(draw(layout, states, plan, token_bytes, width)), layout, plan)
