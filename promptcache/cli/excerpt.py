"""One diagnostic as a person reads it: what is wrong, where, the line with the place marked, and how to mend it.

Comes in: a diagnostic and the documents it points into. Goes out: styled text. This file prints nothing.
"""

from __future__ import annotations

from rich.cells import cell_len
from rich.text import Text

from promptcache.cli.sources import Sources
from promptcache.diagnostics import Diagnostic, Severity, Span

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow"}
_MAX_WIDTH = 140  # characters of a source line; machine-made XML can have all of a document on one line
_BEFORE = 40  # of these, in front of the place itself
_MAX_RELATED = 6


def diagnostic_text(diagnostic: Diagnostic, sources: Sources) -> Text:
    """Return a diagnostic with its excerpts, one newline at the end of each line.

    ```
    error[PC401]: there is no module 'polcy' at the top level
      --> prompts/refund.xml:3:6
      3 |     <polcy><eu/></polcy>
        |      ^^^^^
      = help: did you mean <policy>?
    ```
    """
    colour = _COLOURS[diagnostic.severity]
    shown = diagnostic.related[:_MAX_RELATED]
    gutter = len(str(max(span.line for span in (diagnostic.span, *(span for span, _ in shown)))))
    text = Text()
    text.append(f"{diagnostic.severity}[{diagnostic.code}]", style=f"bold {colour}")
    text.append(f": {printable(diagnostic.message)}\n", style="bold")
    text.append("  --> ", style="blue").append(f"{diagnostic.span}\n")
    text.append_text(_excerpt(diagnostic.span, sources, gutter, "^", colour))
    for span, words in shown:
        text.append("  ::: ", style="blue").append(f"{span} {printable(words)}\n")
        text.append_text(_excerpt(span, sources, gutter, "-", "blue"))
    if len(diagnostic.related) > len(shown):
        text.append(f"  ::: and {len(diagnostic.related) - len(shown)} more places\n", style="blue")
    if diagnostic.help:
        text.append("  = help: ", style="green").append(f"{printable(diagnostic.help)}\n")
    return text


def _excerpt(span: Span, sources: Sources, gutter: int, mark: str, colour: str) -> Text:
    """Return the line a span starts in and its underline; nothing where the line is not known."""
    line = sources.line(span.source, span.line)
    if line is None:
        return Text()
    stop = span.stop_column if span.stop_line == span.line else len(line) + 1
    before, marked, after = _cut(line, span.column - 1, max(stop, span.column + 1) - 1)
    underline = " " * cell_len(before) + mark * max(1, cell_len(marked))
    text = Text()
    text.append(f"  {span.line:>{gutter}} | ", style="blue").append(f"{before}{marked}{after}\n")
    text.append(f"  {'':>{gutter}} | ", style="blue").append(f"{underline}\n", style=f"bold {colour}")
    return text


def _cut(line: str, start: int, stop: int) -> tuple[str, str, str]:
    """Return what a line shows before, in and after the characters `[start, stop)`, cut to what fits on a screen."""
    first = max(0, start - _BEFORE) if len(line) > _MAX_WIDTH else 0
    last = min(len(line), first + _MAX_WIDTH)
    before = ("…" if first else "") + line[first:start]
    after = line[stop:last] + ("…" if last < len(line) else "")
    return printable(before), printable(line[start : min(stop, last)]), printable(after)


def printable(text: str) -> str:
    """Widen tabs and replace whatever could steer the terminal: documents that are checked may come from anyone."""
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character == "\t":
        return "    "
    return character if character.isprintable() or character == " " else "\N{REPLACEMENT CHARACTER}"
