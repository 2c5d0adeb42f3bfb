"""Diagnostics as text: the message, its place, the source lines with the place underlined, and the help.

The text comes in pieces of known kinds, so that a terminal can colour them. This file prints nothing.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from enum import Enum, auto
from typing import NamedTuple

from promptcache.diagnostics.records import Diagnostic, Span

_MAX_WIDTH = 140  # characters of a source line; generated XML may have one line only
_BEFORE = 40  # characters shown before the place
_MAX_RELATED = 6

_JOINERS = "\u200c\u200d"
"""Joiners of letters and emoji. Python calls them not printable, but words are wrong without them."""


class ExcerptPart(Enum):
    """The kind of a piece of an excerpt."""

    SEVERITY = auto()
    MESSAGE = auto()
    FRAME = auto()
    PLAIN = auto()
    MARK = auto()
    RELATED_MARK = auto()
    HELP = auto()


class ExcerptPiece(NamedTuple):
    """Text of an excerpt with its kind."""

    text: str
    part: ExcerptPart = ExcerptPart.PLAIN


def excerpt(diagnostic: Diagnostic) -> str:
    """Return a diagnostic with the lines it is about, one newline at the end of each.

    ```
    error[PC401]: there is no module 'polcy' at the top level
      --> prompts/refund.xml:3:6
      3 |     <polcy><eu/></polcy>
        |      ^^^^^
      = help: did you mean <policy>?
    ```
    """
    return "".join(piece.text for piece in excerpt_pieces(diagnostic))


def excerpt_pieces(diagnostic: Diagnostic) -> Iterator[ExcerptPiece]:
    """Yield the pieces of a diagnostic's excerpt."""
    related: list[tuple[Span, str]] = []  # without text that the message repeats, and without places that add nothing
    for span, words in diagnostic.related:
        is_said = words in diagnostic.message
        if not (is_said and span == diagnostic.span):
            related.append((span, "" if is_said else words))
    shown = related[:_MAX_RELATED]
    gutter = len(str(max(span.line for span in (diagnostic.span, *(span for span, _ in shown)))))
    yield ExcerptPiece(f"{diagnostic.severity}[{diagnostic.code}]", ExcerptPart.SEVERITY)
    yield ExcerptPiece(f": {printable(diagnostic.message)}\n", ExcerptPart.MESSAGE)
    yield ExcerptPiece("  --> ", ExcerptPart.FRAME)
    yield ExcerptPiece(f"{printable(str(diagnostic.span))}\n")
    yield from _line(diagnostic.span, gutter, "^", ExcerptPart.MARK)
    for span, words in shown:
        yield ExcerptPiece("  ::: ", ExcerptPart.FRAME)
        yield ExcerptPiece(f"{printable(f'{span} {words}'.rstrip())}\n")
        yield from _line(span, gutter, "-", ExcerptPart.RELATED_MARK)
    if len(related) > len(shown):
        yield ExcerptPiece(f"  ::: and {len(related) - len(shown)} more places\n", ExcerptPart.FRAME)
    yield ExcerptPiece("  = help: ", ExcerptPart.HELP)
    yield ExcerptPiece(f"{printable(diagnostic.help)}\n")


def printable(text: str) -> str:
    """Return text safe for a terminal: tabs are widened, and control characters replaced."""
    return "".join(
        character if character.isprintable() or character in _JOINERS else "\N{REPLACEMENT CHARACTER}"
        for character in text.replace("\t", "    ")
    )


def _line(span: Span, gutter: int, mark: str, part: ExcerptPart) -> Iterator[ExcerptPiece]:
    """Yield the line in which a span starts, cut to the width of a screen and underlined, if its text is known."""
    line = span.document.line(span.line) if span.document is not None else None
    if line is None:
        return
    start, stop = span.column - 1, span.stop_column - 1 if span.stop_line == span.line else len(line)
    stop = max(stop, span.column)
    first = max(0, start - _BEFORE) if len(line) > _MAX_WIDTH else 0
    last = min(len(line), first + _MAX_WIDTH)
    before = printable(("…" if first else "") + line[first:start])
    marked = printable(line[start : min(stop, last)])
    after = printable(line[stop:last] + ("…" if last < len(line) else ""))
    underline = " " * _width(before) + mark * max(1, _width(marked))
    yield ExcerptPiece(f"  {span.line:>{gutter}} | ", ExcerptPart.FRAME)
    yield ExcerptPiece(f"{before}{marked}{after}\n")
    yield ExcerptPiece(f"  {'':>{gutter}} | ", ExcerptPart.FRAME)
    yield ExcerptPiece(f"{underline}\n", part)


def _width(text: str) -> int:
    """Return the number of terminal cells of a text."""
    seen = [each for each in text if unicodedata.category(each) not in {"Mn", "Me"} and each not in _JOINERS]
    return len(seen) + sum(unicodedata.east_asian_width(each) in {"W", "F"} for each in seen)
