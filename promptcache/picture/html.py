"""HTML of a tree: a row for each module, union and turn, which opens to show its facts and texts in words.

The HTML has no script and no style attribute. All text is added through the element tree, so it cannot become markup.
Notebooks show it as the view of layouts, plans and answers. The views are registered by type name, so that registering
imports neither IPython nor the types.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lxml import etree

from promptcache.layout import Layout, Plan
from promptcache.picture.draw import STYLE, Line, add, axis, bar, extent, grouped_lines, legend, name, num_tokens, shown
from promptcache.picture.part import Part, facts, title
from promptcache.picture.view import view

if TYPE_CHECKING:
    from promptcache.decode import Completion

HTML_STYLE = STYLE + Path(__file__).with_name("html.css").read_text(encoding="utf-8")
"""Style sheet of all HTML pictures. Its colours follow the `color-scheme` of the page."""

_PAGE_STYLE = ":root { color-scheme: light dark } body { margin: 16px; background: light-dark(#ffffff, #14171f) }"


def html_page(root: Part) -> str:
    """Return a document with the picture of a tree."""
    html = etree.Element("html", {"lang": "en"})
    head = add(html, "head")
    add(head, "meta", "", {"charset": "utf-8"})
    add(head, "meta", "", {"name": "viewport", "content": "width=device-width"})
    add(head, "title", shown(f"{root.name}: layout"))
    add(head, "style", _PAGE_STYLE + HTML_STYLE)
    add(html, "body").append(_picture(root))
    return etree.tostring(html, method="html", encoding="unicode", doctype="<!DOCTYPE html>") + "\n"


def _picture(root: Part) -> etree._Element:
    picture = etree.Element("div", {"class": "promptcache"})
    head = add(picture, "p")
    add(head, "b", shown(root.name)).tail = shown("  " + " · ".join(facts(root)))
    keys = add(picture, "p", "", {"class": "legend"})
    stop = root.stop + 1  # the first generated token included
    _axis(picture, 0, stop)
    for lines in grouped_lines(root):
        _lines(picture, lines, 0, stop)
    for style, meaning in legend(picture):
        key = add(keys, "span")
        swatch = add(key, "svg", "", {"class": "key"})
        add(swatch, "rect", "", {"class": style, "width": "12", "height": "12"})
        swatch.tail = meaning
    return picture


def _axis(parent: etree._Element, start: int, stop: int) -> None:
    line = add(parent, "div", "", {"class": "row"})
    add(line, "span", "", {"class": "name"})
    line.append(axis(start, stop))
    add(line, "span", "tokens", {"class": "faded"})


def _lines(parent: etree._Element, lines: Sequence[Line], start: int, stop: int) -> None:
    """Add a row that opens in words, or a group of lines that opens on a scale of its own."""
    details = add(parent, "details")
    summary = add(details, "summary", "", {"class": "row"})
    part = lines[0].part
    is_present = any(row.part.present for row in lines)
    add(summary, "span", name(lines), {"class": "name" if is_present else "name faded", "title": shown(part.name)})
    summary.append(bar(lines, start, stop))
    add(summary, "span", num_tokens(lines), {"class": "faded"})
    if len(lines) > 1:
        inside, (first, last) = add(details, "div", "", {"class": "inside"}), extent(lines)
        _axis(inside, first, max(last, first + 1))
        for row in lines:
            _lines(inside, [row], first, max(last, first + 1))
        return
    add(details, "p", shown(" · ".join(facts(part))), {"class": "faded"})
    for leaf in part.leaves:
        line = add(details, "p", shown(title(leaf)))
        add(line, "span", shown("  " + " · ".join(facts(leaf))), {"class": "faded"})


def register() -> None:
    """Register the views if IPython is running, else do nothing."""
    shell: Any = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        views = shell.display_formatter.formatters["text/html"]
        for path, fragment in VIEWS.items():
            views.for_type_by_name(*path.rsplit(".", 1), fragment)


def _fragment(value: Layout | Plan, *texts: str) -> str:
    """Return the picture of a value for a notebook, behind lines of text."""
    picture = _picture(view(value))
    for text in reversed(texts):
        picture.insert(0, etree.Element("p"))
        picture[0].text = shown(text)
    picture.insert(0, etree.Element("style"))
    picture[0].text = HTML_STYLE
    return etree.tostring(picture, method="html", encoding="unicode")


def _completion_fragment(completion: Completion) -> str:
    usage = completion.usage
    said = [
        f"{usage.num_reused_tokens:,} tokens reused",
        f"{usage.num_new_tokens:,} new",
        f"{usage.num_generated_tokens:,} generated",
        f"level {completion.level}{', lossy' if completion.lossy else ''}",
        f"first token after {1e3 * completion.timing.ttft_s:,.0f} ms",
        f"ended by {completion.finish_reason}",
    ]
    return _fragment(completion.plan, *completion.text.split("\n"), " · ".join(said))


VIEWS: dict[str, Any] = {
    "promptcache.layout.types.Layout": _fragment,
    "promptcache.layout.pieces.Plan": _fragment,
    "promptcache.decode.completion.Completion": _completion_fragment,
}
"""View of each type, by its full name."""
