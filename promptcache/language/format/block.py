"""One text block, laid out anew where that changes nothing.

Comes in: the nodes of a block and how its whitespace is read. Goes out: the block on lines of its own, or None: then it
has to stay as it is. What is allowed is not decided here but asked of `finish`, which gives the text that a block
means: a new layout that means anything else is refused. This file knows no elements: a tag in a block is a tag.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from promptcache.language.format.markup import CDATA_END, CDATA_START, Chars, Kind, Node, Tag, read_markup
from promptcache.language.schema import Whitespace
from promptcache.language.syntax.whitespace import finish

_BLANK = " \t"
_SPACE = " \t\n"


def laid_out(nodes: Sequence[Node], mode: Whitespace, indent: str, write_tag: Callable[[Tag], str]) -> str | None:
    """Return a block with each line behind `indent`, but for the first; None where that would say something else."""
    if mode is Whitespace.PRESERVE:
        return None  # the lines and indentation around a block are part of it
    lines = _lines(nodes, write_tag)
    kept = "\n".join(_indented(lines, indent)).strip("\n").removeprefix(indent)
    trimmed = kept.strip(_BLANK)
    meant = meaning(nodes, mode)
    if _means(trimmed, indent, mode) == meant:
        return trimmed
    if kept[-1:] in _BLANK and "\n" not in ending(nodes):
        return None  # a space that ends a line is one that editors remove
    return kept if _means(kept, indent, mode) == meant else None


def _means(body: str, indent: str, mode: Whitespace) -> list[str | None]:
    return meaning(read_markup(f"\n{indent}{body}\n"), mode)


def meaning(nodes: Sequence[Node], mode: Whitespace) -> list[str | None]:
    """Return the text of a block, None for each tag in it."""
    pieces: list[str | None] = []
    for is_tag, group in groupby(nodes, key=lambda node: isinstance(node, Tag)):
        if is_tag:
            pieces += [None for _ in group]
        elif text := "".join(node.value for node in group if isinstance(node, Chars)):
            pieces.append(text)
    return [piece for piece in finish(pieces, mode) if piece != ""] if pieces else []


def beginning(nodes: Sequence[Node]) -> str:
    """Return the whitespace that a block begins with."""
    first = nodes[0]
    if isinstance(first, Tag) or first.kind is not Kind.TEXT:
        return ""
    return first.raw[: len(first.raw) - len(first.raw.lstrip(_SPACE))]


def ending(nodes: Sequence[Node]) -> str:
    """Return the whitespace that a block ends with."""
    last = nodes[-1]
    if isinstance(last, Tag) or last.kind is not Kind.TEXT:
        return ""
    return last.raw[len(last.raw.rstrip(_SPACE)) :]


@dataclass(slots=True)
class _Line:
    """A line as it is written; `said` tells whether it holds more than whitespace, comments and CDATA marks."""

    raw: str = ""
    said: bool = False

    @property
    def indent(self) -> str:
        return self.raw[: len(self.raw) - len(self.raw.lstrip(_BLANK))]


def _lines(nodes: Sequence[Node], write_tag: Callable[[Tag], str]) -> list[_Line]:
    lines = [_Line()]
    for node in nodes:
        if isinstance(node, Tag):
            lines[-1].raw += write_tag(node)
            lines[-1].said = True
        elif node.kind is Kind.COMMENT:
            lines[-1].raw += node.raw
        elif node.kind is Kind.CDATA:
            lines[-1].raw += CDATA_START
            _append(lines, node.value)
            lines[-1].raw += CDATA_END
        else:
            _append(lines, node.raw)
    return lines


def _append(lines: list[_Line], text: str) -> None:
    for number, part in enumerate(text.split("\n")):
        if number:
            lines.append(_Line())
        lines[-1].raw += part
        lines[-1].said |= bool(part.strip(_BLANK))


def _indented(lines: Sequence[_Line], indent: str) -> list[str]:
    """Put `indent` in the place of the indentation that all lines share; a first line behind a tag has none."""
    behind_tag = lines[0] if lines[0].said else None
    margin = _common([line.indent for line in lines if line.said and line is not behind_tag])
    found = []
    for line in lines:
        if not line.raw.strip(_BLANK):
            found.append("")
        elif not line.said:
            found.append(indent + line.raw.strip(_BLANK))
        else:
            found.append(indent + (line.raw if line is behind_tag else line.raw.removeprefix(margin)))
    return found


def _common(texts: Sequence[str]) -> str:
    """Return what all texts begin with."""
    first, last = min(texts, default=""), max(texts, default="")
    return first[: next((n for n, pair in enumerate(zip(first, last, strict=False)) if len({*pair}) > 1), len(first))]
