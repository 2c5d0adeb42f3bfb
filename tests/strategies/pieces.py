"""Faults as pieces of XML. A piece has the fault and no other; its caret is the place of the diagnostic.

A piece replaces a marker element in the text of a valid document. Its place is then counted in the finished text, so the
language is not asked for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lxml import etree

CARET = "‸"
_POINT = "\ufffe"  # a caret may stand in a drawn text; this character cannot
_MARKER = "stray-place"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of XML with a fault: its name, the code that it gets first, and the files that it names."""

    name: str
    code: str
    xml: str
    where: str
    files: Mapping[str, str] = field(default_factory=dict)


def read_pieces(where: str, table: str) -> tuple[Piece, ...]:
    """Read lines of a code, a name and a piece."""
    rows = (line.split(maxsplit=1) for line in table.strip().splitlines())
    parts = [(code, *rest.split(" | ", 1)) for code, rest in rows]
    return tuple(Piece(name=name.strip(), code=code, xml=xml, where=where) for code, name, xml in parts)


def mark(parent: etree._Element, index: int) -> None:
    """Insert the marker into an element."""
    parent.insert(index, etree.Element(_MARKER))


def put(document: str, piece: str) -> str:
    """Return a document with a piece in place of the marker."""
    return document.replace(f"<{_MARKER}/>", pointed(piece))


def pointed(piece: str) -> str:
    """Return a piece whose caret `take_point` finds."""
    return piece.replace(CARET, _POINT)


def take_point(texts: Mapping[str, str]) -> tuple[dict[str, str], str, int, int]:
    """Return documents without the caret, and its document, line and column, both from 1."""
    (name,) = (name for name, text in texts.items() if _POINT in text)
    line, column = line_and_column(texts[name], texts[name].index(_POINT))
    return {each: text.replace(_POINT, "") for each, text in texts.items()}, name, line, column


def line_and_column(document: str, offset: int) -> tuple[int, int]:
    """Return the line and column of an offset, both from 1."""
    before = document[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1
