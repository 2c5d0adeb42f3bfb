"""Explanations of diagnostic codes as people and programs read them: the work of `promptcache why`.

Comes in: explanations. Goes out: text on a console, or data. This file does not know where they come from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.text import Text

from promptcache.cli.explanations import Explanation
from promptcache.diagnostics import Severity

_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_STRONG = re.compile(r"\*\*(.+?)\*\*")
_MARKED = re.compile(r"\*\*(?P<strong>.+?)\*\*|`(?P<code>[^`]+)`")
_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow"}


def print_explanation(explanation: Explanation, console: Console) -> None:
    """Print what a code means, an example of it, and how to mend it."""
    console.print(_heading(explanation, bold=True))
    console.print()
    for line in _lines(explanation.markdown):
        console.print(line, soft_wrap=not console.is_terminal)


def print_codes(explanations: Iterable[Explanation], console: Console) -> None:
    """Print a line for every code, under the headings of the page."""
    for number, (group, entries) in enumerate(groupby(explanations, key=lambda entry: entry.group)):
        console.print(Text(f"\n{group}" if number else group, style="bold"))
        for entry in entries:
            console.print(Text("  ").append_text(_heading(entry, bold=False)))


def explanation_data(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as data; the text is Markdown."""
    return {
        "code": explanation.code,
        "title": explanation.title,
        "severity": explanation.severity,
        "group": explanation.group,
        "text": explanation.markdown,
    }


def plain(markdown: str) -> str:
    """Return an explanation without the signs of Markdown, examples left out."""
    text = "\n".join(line for line, is_example in _classified(markdown) if not is_example)
    return re.sub(r"\n{3,}", "\n\n", _STRONG.sub(r"\1", _LINK.sub(r"\1", text))).strip()


def _heading(explanation: Explanation, *, bold: bool) -> Text:
    text = Text().append(explanation.code, style=f"{'bold ' if bold else ''}{_COLOURS[explanation.severity]}")
    text.append(f"  {explanation.title}", style="bold" if bold else "default")
    return text.append(" (a warning)") if explanation.severity is Severity.WARNING else text


def _lines(markdown: str) -> Iterator[Text]:
    """Yield the lines of an explanation, examples indented."""
    for line, is_example in _classified(markdown):
        yield Text(f"    {line}", style="cyan") if is_example else _styled(_LINK.sub(r"\1", line))


def _classified(markdown: str) -> Iterator[tuple[str, bool]]:
    """Yield every line, fences left out, with whether it belongs to an example."""
    is_example = False
    for line in markdown.split("\n"):
        if line.startswith("```"):
            is_example = not is_example
        else:
            yield line, is_example


def _styled(line: str) -> Text:
    """Show what Markdown marks: words in bold, code in its colour and with its quotes."""
    text, start = Text(), 0
    for marked in _MARKED.finditer(line):
        text.append(line[start : marked.start()])
        if strong := marked["strong"]:
            text.append(strong, style="bold")
        else:
            text.append(marked[0], style="cyan")
        start = marked.end()
    return text.append(line[start:])
