"""The picture as a page of its own, with a table of the slots below it.

Comes in: the picture's element, a layout, perhaps a plan. Goes out: an HTML document that needs nothing else. This file
does not know how the picture is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lxml import etree

from promptcache.layout.picture.excerpt import counted, excerpt, shown
from promptcache.layout.picture.palette import AXIS, FADED, INK, PAPER
from promptcache.layout.types import Layout, Plan, Slot

_MAX_CHARS = 60
_MAX_ROWS = 1_000
_HEADINGS = ("module", "parameter", "positions", "length", "default", "placeholder", "required")


def html_page(picture: etree._Element, layout: Layout, plan: Plan | None) -> str:
    """Return the HTML document around a picture."""
    html = etree.Element("html", {"lang": "en"})
    head = etree.SubElement(html, "head")
    etree.SubElement(head, "meta", {"charset": "utf-8"})
    etree.SubElement(head, "meta", {"name": "viewport", "content": "width=device-width"})
    _add(head, "title", f"{layout.schema.name}: layout")
    _add(head, "style", _style_sheet())
    body = etree.SubElement(html, "body")
    body.append(picture)
    slots = [slot for run in layout.runs for slot in run.slots]
    _add(body, "h2", counted(len(slots), "slot"))
    if slots:
        _table(body, slots[:_MAX_ROWS], layout, plan)
    if len(slots) > _MAX_ROWS:
        _add(body, "p", f"and {len(slots) - _MAX_ROWS:,} more")
    document = etree.tostring(html, method="html", encoding="unicode", doctype="<!DOCTYPE html>")
    return f"{document}\n"


def _table(body: etree._Element, slots: Sequence[Slot], layout: Layout, plan: Plan | None) -> None:
    table = etree.SubElement(body, "table")
    _row(etree.SubElement(table, "thead"), "th", [*_HEADINGS, *([] if plan is None else ["in this prompt"])])
    rows = etree.SubElement(table, "tbody")
    for slot in slots:
        _row(rows, "td", [*_cells(slot, layout), *([] if plan is None else [_content(slot, plan)])])


def _cells(slot: Slot, layout: Layout) -> Iterator[str]:
    """Yield what the schema says about a slot, in the order of the headings."""
    parameter = layout.schema.parameters[slot.module][slot.parameter]
    yield slot.module or "–"
    yield slot.parameter
    yield f"{slot.start:,}–{slot.stop - 1:,}"
    yield f"{slot.stop - slot.start:,}"
    yield "–" if parameter.default is None else excerpt(parameter.default, _MAX_CHARS)
    yield "–" if parameter.placeholder is None else excerpt(parameter.placeholder, _MAX_CHARS)
    yield "yes" if slot.required else "–"


def _content(slot: Slot, plan: Plan) -> str:
    """Return what a prompt puts into a slot."""
    if slot.module and slot.module not in plan.selection.modules:
        return "absent"
    given = {(each.module, each.parameter): each.text for each in plan.selection.arguments}
    text = given.get((slot.module, slot.parameter))
    if text is not None:
        return excerpt(text, _MAX_CHARS)
    return "its default" if slot.default_ids else "nothing"


def _row(parent: etree._Element, name: str, cells: Sequence[str]) -> None:
    row = etree.SubElement(parent, "tr")
    for cell in cells:
        _add(row, name, cell)


def _add(parent: etree._Element, name: str, text: str) -> None:
    element = etree.SubElement(parent, name)
    element.text = shown(text) if name != "style" else text


def _style_sheet() -> str:
    light, dark = (
        f"body {{ background: {PAPER[n]}; color: {INK[n]} }} "
        f"td, th {{ border-bottom: 1px solid {AXIS[n]} }} th {{ color: {FADED[n]} }}"
        for n in (0, 1)
    )
    plain = (
        "body { font: 14px system-ui, sans-serif; margin: 1rem } h2 { font-size: 1rem } "
        "table { border-collapse: collapse } "
        "td, th { padding: 0.2rem 0.8rem 0.2rem 0; text-align: left; vertical-align: top }"
    )
    return f"{plain} {light} @media (prefers-color-scheme: dark) {{ {dark} }}"
