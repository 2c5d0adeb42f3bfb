"""Draw a chart as HTML that fills the available width, for a separate page or a notebook.

The HTML has no script: lines fold with `<details>`, and a style sheet highlights contexts. All text is added
through the element tree, so text cannot become markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from lxml import etree

from promptcache.diagnostics import counted, listed
from promptcache.language import CheckedItem, CheckedModule, CheckedSchema, CheckedTurn, CheckedUnion, FinalText
from promptcache.layout import Layout, Plan, Slot
from promptcache.picture.chart import Chart, ChartLine, LineKind, Mark, indices
from promptcache.picture.style import ROOT_CLASS, html_style, legend, page_style, table_style
from promptcache.picture.svg import extent_style, mark_style, number, tick_step
from promptcache.picture.text import excerpt, shown

if TYPE_CHECKING:
    from promptcache.decode import Completion

_MAX_CHARS = 60
_MAX_LINES = 1_000
_MAX_CHOICES = 4
_MAX_TEXT = 200
_USUAL_PIXELS, _LABEL_PIXELS = 760, 56  # width of all bars, and of a mark with a label
_MAX_TICKS = 6
_HEADINGS = ("module", "parameter", "type", "positions", "length", "default", "placeholder", "required")


def html_page(chart: Chart, layout: Layout, plan: Plan | None) -> str:
    """Return a document with the picture and a table of the slots."""
    picture = _picture(chart)
    slots = [slot for run in layout.runs for slot in run.slots]
    _add(picture, "h2", counted(len(slots), "slot"))
    if slots:
        headings = [*_HEADINGS, *([] if plan is None else ["in this prompt"])]
        facts = (
            [*_facts(each, layout), *([] if plan is None else [_content(each, plan)])] for each in slots[:_MAX_LINES]
        )
        _table(picture, headings, facts)
    if len(slots) > _MAX_LINES:
        _add(picture, "p", f"and {len(slots) - _MAX_LINES:,} more")
    return _page(f"{layout.schema.name}: layout", picture)


def html_fragment(chart: Chart) -> str:
    """Return the picture for a notebook."""
    return _text_of(_picture(chart))


def completion_fragment(completion: Completion, chart: Chart) -> str:
    """Return an answer with its cost and the picture of its plan for a notebook."""
    usage = completion.usage
    facts = [
        f"{usage.num_reused_tokens:,} tokens reused",
        f"{usage.num_new_tokens:,} new",
        f"{usage.num_generated_tokens:,} generated",
        f"level {completion.level}{', lossy' if completion.lossy else ''}",
        f"first token after {1e3 * completion.timing.ttft_s:,.0f} ms",
        f"ended by {completion.finish_reason}",
    ]
    root = etree.Element("div", {"class": ROOT_CLASS})
    _style(root, html_style(chart.num_contexts))
    answer = _add(root, "p", "", {"class": "answer"})
    answer.text = "\n".join(map(shown, completion.text.split("\n")))
    _add(root, "p", " · ".join(facts), {"class": "say"})
    _lines_of(root, chart)
    return _text_of(root)


def schema_fragment(schema: CheckedSchema) -> str:
    """Return the modules and slots of a schema for a notebook; without a tokenizer there are no positions."""
    root = etree.Element("div", {"class": ROOT_CLASS})
    _style(root, html_style(0))
    head = _add(root, "p", "", {"class": "head"})
    _add(head, "b", schema.name)
    num_slots = sum(map(len, schema.parameters.values()))
    _add(head, "span", f"{counted(len(schema.modules), 'module')} · {counted(num_slots, 'slot')}")
    _outline(root, schema.children, 0)
    return _text_of(root)


def _page(title: str, picture: etree._Element) -> str:
    html = etree.Element("html", {"lang": "en"})
    head = etree.SubElement(html, "head")
    etree.SubElement(head, "meta", {"charset": "utf-8"})
    etree.SubElement(head, "meta", {"name": "viewport", "content": "width=device-width"})
    _add(head, "title", title)
    _style(head, page_style())
    etree.SubElement(html, "body").append(picture)
    return f"{_text_of(html, doctype='<!DOCTYPE html>')}\n"


def _picture(chart: Chart) -> etree._Element:
    root = etree.Element("div", {"class": ROOT_CLASS})
    _style(root, html_style(chart.num_contexts))
    _lines_of(root, chart)
    return root


def _lines_of(root: etree._Element, chart: Chart) -> None:
    head = _add(root, "p", "", {"class": "head"})
    _add(head, "b", chart.title)
    _add(head, "span", chart.summary)
    keys = _add(root, "p", "", {"class": "legend"})
    for style, meaning in legend(chart.looks):
        key = _add(keys, "span", "")
        _add(key, "i", "", {"class": style}).tail = meaning
    _axis(root, 0, chart.stop)
    _lines(root, chart.lines, 0, 0, chart.stop)


def _lines(parent: etree._Element, lines: Iterable[ChartLine], depth: int, start: int, stop: int) -> None:
    """Add lines with bars for the positions `[start, stop)`; a fold has a scale of its own."""
    for line in lines:
        if not line.children:
            _line(_add(parent, "div", ""), line, depth, start, stop)
            continue
        details = _add(parent, "details", "", {"open": "open"} if line.is_open else {})
        _line(_add(details, "summary", ""), line, depth, start, stop)
        if line.kind is LineKind.FOLD:
            inside = _add(details, "div", "", {"class": "fold-inside"})
            _axis(inside, line.start, line.stop)
            _lines(inside, line.children, depth, line.start, line.stop)
        else:
            _lines(details, line.children, depth + 1, start, stop)


def _line(element: etree._Element, line: ChartLine, depth: int, start: int, stop: int) -> None:
    context = [] if line.sees is None else [f"s{line.sees}"]
    classes = ["row", *context, *(f"t{number}" for number in line.seen_in), *([] if line.present else ["gone"])]
    element.attrib.update({"class": " ".join(classes), "title": _notes(line.notes), **dict(indices([line], ()))})
    _add(element, "span", line.labels[0], {"class": "name", **({"style": f"--depth:{depth}"} if depth else {})})
    bar = _add(element, "span", "", {"class": "bar"})
    _add(bar, "i", "", {"class": extent_style(line), "style": _place(line.start, line.stop, start, stop)})
    for mark in line.marks:
        _mark(bar, mark, start, stop)
    _add(element, "span", "" if line.num_tokens is None else f"{line.num_tokens:,}", {"class": "num"})


def _mark(bar: etree._Element, mark: Mark, start: int, stop: int) -> None:
    place = {"style": _place(mark.start, mark.stop, start, stop), **dict(indices((), [mark]))}
    element = _add(bar, "b", "", {"class": mark_style(mark), "title": _notes(mark.notes), **place})
    for section in mark.sections:
        inside = _place(section.start, section.stop, mark.start, mark.stop)
        _add(element, "i", "", {"class": section.look, "style": inside})
    pixels = (mark.stop - mark.start) / max(stop - start, 1) * _USUAL_PIXELS
    if pixels >= _LABEL_PIXELS and mark.labels:
        _add(element, "span", mark.labels[0])


def _axis(parent: etree._Element, start: int, stop: int) -> None:
    """Add a line with ticks at round numbers of tokens."""
    line = _add(parent, "div", "", {"class": "row axis"})
    _add(line, "span", "", {"class": "name"})
    bar = _add(line, "span", "", {"class": "bar"})
    step = tick_step(stop - start, _MAX_TICKS)
    for position in range(-(-start // step) * step, stop, step):
        if (stop - position) / (stop - start) > 0.04:  # enough space for the name
            left = 100 * (position - start) / (stop - start)
            _add(bar, "span", f"{position:,}", {"class": "tick", "style": f"left:{number(left)}%"})
    _add(line, "span", "tokens", {"class": "num"})


def _place(first: int, last: int, start: int, stop: int) -> str:
    """Return positions as a CSS style, relative to `start` and `stop`."""
    scale = 100 / max(stop - start, 1)
    return f"left:{number((first - start) * scale)}%;width:{number((last - first) * scale)}%"


def _notes(notes: Sequence[str]) -> str:
    return "\n".join(map(shown, notes))


def _outline(parent: etree._Element, items: Iterable[CheckedItem], depth: int) -> None:
    """Add a line for every module, union and turn, with the beginning of its own text."""
    for item in items:
        if isinstance(item, CheckedModule | CheckedUnion | CheckedTurn):
            children: Sequence[CheckedItem] = item.members if isinstance(item, CheckedUnion) else item.children
            has_lines = any(isinstance(child, CheckedModule | CheckedUnion | CheckedTurn) for child in children)
            block = _add(parent, "details", "", {"open": "open"} if depth < 2 else {}) if has_lines else parent
            line = _add(block, "summary" if has_lines else "div", "", {"class": "row", "style": f"--depth:{depth}"})
            _add(line, "span", _item_name(item), {"class": "name"})
            _add(line, "span", "".join(_own_text(children)).strip()[:_MAX_TEXT], {"class": "say"})
            if has_lines:
                _outline(block, children, depth + 1)


def _item_name(item: CheckedModule | CheckedUnion | CheckedTurn) -> str:
    match item:
        case CheckedModule():
            facts = {"required": item.required, "not cached": not item.cache}
            return " · ".join([item.path.rpartition("/")[2], *(name for name, holds in facts.items() if holds)])
        case CheckedTurn():
            return f"{item.role} turn"
        case _:
            chosen = "exactly one" if item.required or item.default is not None else "at most one"
            return f"union {item.name or ''} · {chosen}".replace("  ", " ")


def _own_text(items: Sequence[CheckedItem]) -> Iterator[str]:
    for item in items:
        if isinstance(item, FinalText):
            yield item.text
        elif not isinstance(item, CheckedModule | CheckedUnion | CheckedTurn):
            yield f"{item.lead}‹{item.name}: {item.length}›"


def _table(parent: etree._Element, headings: Sequence[str], facts: Iterable[Sequence[str]]) -> None:
    """Add a table. In a narrow picture each line is a block, and each cell is beside its heading."""
    name = f"of-{headings[0]}"
    _style(parent, table_style(name, headings))
    table = _add(_add(parent, "div", "", {"class": f"table {name}"}), "table", "")
    _cells(_add(table, "thead", ""), "th", headings)
    body = _add(table, "tbody", "")
    for cells in facts:
        _cells(body, "td", cells)


def _facts(slot: Slot, layout: Layout) -> Iterator[str]:
    """Yield the declared properties of a slot, in the order of the headings."""
    parameter = layout.schema.parameters[slot.module][slot.parameter]
    yield slot.module
    yield slot.parameter
    yield parameter.type if not parameter.choices else f"{parameter.type}: {listed(parameter.choices, _MAX_CHOICES)}"
    yield f"{slot.start:,}–{slot.stop - 1:,}"
    yield f"{slot.stop - slot.start:,}"
    yield "" if parameter.default is None else excerpt(parameter.default, _MAX_CHARS)
    yield "" if parameter.placeholder is None else excerpt(parameter.placeholder, _MAX_CHARS)
    yield "yes" if slot.required else ""


def _content(slot: Slot, plan: Plan) -> str:
    if slot.module and slot.module not in plan.selection.modules:
        return "absent"
    given = {(each.module, each.parameter): each.text for each in plan.selection.arguments}
    text = given.get((slot.module, slot.parameter))
    if text is not None:
        return excerpt(text, _MAX_CHARS)
    parameter = plan.layout.schema.parameters[slot.module][slot.parameter]
    return "its default" if parameter.default else "nothing"


def _cells(parent: etree._Element, name: str, cells: Sequence[str]) -> None:
    element = _add(parent, "tr", "")
    for cell in cells:
        _add(element, name, cell)


def _style(parent: etree._Element, sheet: str) -> None:
    etree.SubElement(parent, "style").text = sheet


def _add(parent: etree._Element, name: str, text: str, attributes: Mapping[str, str] | None = None) -> etree._Element:
    element = etree.SubElement(parent, name, dict(attributes or {}))
    if text:
        element.text = shown(text)
    return element


def _text_of(element: etree._Element, doctype: str | None = None) -> str:
    return etree.tostring(element, method="html", encoding="unicode", doctype=doctype)
