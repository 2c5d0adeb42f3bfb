"""Write the markup of a schema or prompt: each block starts on a new line, and attributes have a fixed order.

Writing never changes the tokens of a document. Reading what was written, and writing it again, gives the same text. A
text block is not changed if its text, as `finish` returns it, would be different, or would get a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from os.path import commonprefix
from typing import NamedTuple, TypeGuard

from promptcache.language.format.markup import CDATA_END, CDATA_START, Chars, MarkupKind, MarkupNode, Tag, read_markup
from promptcache.language.syntax.attributes import PATHS, SOME_PATHS, attributes_of
from promptcache.language.syntax.elements import ELEMENTS, PROMPT_ELEMENTS, ElementType
from promptcache.language.syntax.nodes import Whitespace
from promptcache.language.syntax.whitespace import finish, stray_indentation

_WIDTH = 120
"""Maximum line width, in characters. Longer start tags are split, and longer text moves to lines between its tags."""

_INDENT = "  "
_BLANK = " \t"
_SPACE = " \t\n"


class _Surroundings(NamedTuple):
    """Options that an element inherits, with the declarations of the elements in its kind of document."""

    elements: Mapping[str, ElementType]
    whitespace: Whitespace
    indent: str

    def within(self, tag: Tag) -> _Surroundings:
        elements, whitespace = self.elements, self.whitespace
        if elements is ELEMENTS and tag.name == "example":
            elements, whitespace = PROMPT_ELEMENTS, Whitespace.DEDENT
        elif elements is ELEMENTS and tag.name == "doc":
            whitespace = Whitespace.DEDENT
        elif elements is ELEMENTS and tag.name in {"schema", "module", "collection"}:
            written = dict(tag.attributes).get("whitespace", f'"{whitespace}"')[1:-1]
            whitespace = Whitespace(Chars(MarkupKind.TEXT, written).value)
        return _Surroundings(elements, whitespace, self.indent + _INDENT)

    def is_inline(self, tag: Tag) -> bool:
        return tag.name in self.elements and self.elements[tag.name].is_inline


class _Item(NamedTuple):
    """Formatted child of an element.

    The text of a `glued` item includes the whitespace around it. Any other item follows `gap` newlines, or a space if
    `gap` is 0.
    """

    text: str
    gap: int = 1
    glued: bool = False


def write_markup(nodes: Sequence[MarkupNode], *, is_prompt: bool) -> str:
    """Return the text of a document; every line ends with a newline."""
    items = _items(nodes, _Surroundings(PROMPT_ELEMENTS if is_prompt else ELEMENTS, Whitespace.DEDENT, ""))
    return _joined(list(items), "") + "\n"


def _write_element(tag: Tag, around: _Surroundings) -> str:
    head = _start_tag(tag, around)
    is_exact = tag.name in around.elements and around.elements[tag.name].is_exact
    if is_exact or around.is_inline(tag):
        inner = tag.inner if is_exact or tag.inner.strip(" \t\n") else ""
    else:
        inner = _content(tag, head, around)
    return f"{head}>{inner}</{tag.name}>" if inner else f"{head}/>"


def _content(tag: Tag, head: str, around: _Surroundings) -> str:
    inside = around.within(tag)
    on_one_line = "\n" not in tag.inner
    if on_one_line and not _is_free(tag.children) and not any(_is_block(node, inside) for node in tag.children):
        line = "".join(_write(node, inside) for node in tag.children)
        if _fits(tag, head, line, around):
            return line
    items = list(_items(tag.children, inside))
    if not items:
        return ""
    if on_one_line and around.elements is PROMPT_ELEMENTS and tag.name != "prompt":
        line = "".join(item.text for item in items)
        if _fits(tag, head, line, around):
            return line
    before = "" if items[0].glued else f"\n{inside.indent}"
    after = "" if items[-1].glued else f"\n{around.indent}"
    return f"{before}{_joined(items, inside.indent)}{after}"


def _fits(tag: Tag, head: str, line: str, around: _Surroundings) -> bool:
    return "\n" not in head + line and len(f"{around.indent}{head}>{line}</{tag.name}>") <= _WIDTH


def _joined(items: Sequence[_Item], indent: str) -> str:
    parts = []
    for number, item in enumerate(items):
        if number and not item.glued and not items[number - 1].glued:
            parts.append("\n" * item.gap + indent if item.gap else " ")
        parts.append(item.text)
    return "".join(parts)


def _items(nodes: Sequence[MarkupNode], around: _Surroundings) -> Iterator[_Item]:
    """Yield the blocks among `nodes` and the comments between them."""
    space = "\n"
    for is_block, group in groupby(nodes, key=lambda node: _is_block(node, around)):
        if is_block:
            for node in group:
                yield _Item(_write(node, around), _gap(space))
                space = "\n"
            continue
        run = list(group)
        if _is_free(run):
            for node in run:
                if _is_plain(node):
                    space = node.raw
                else:  # a comment can be on the line of the node before it
                    yield _Item(_write(node, around), _gap(space) if "\n" in space else 0)
                    space = "\n"
            continue
        first, last = (node.raw if _is_plain(node) else "" for node in (run[0], run[-1]))
        space = last[len(last.rstrip(_SPACE)) :]
        if (body := _laid_out(run, around, space)) is None:
            yield _Item("".join(_write(node, around) for node in run), glued=True)
        else:
            yield _Item(body, _gap(first[: len(first) - len(first.lstrip(_SPACE))]))


def _gap(space: str) -> int:
    """Return the number of newlines before a block: 2 if the source has a blank line there, else 1."""
    return 2 if space.count("\n") > 1 else 1


def _is_plain(node: MarkupNode) -> TypeGuard[Chars]:
    return isinstance(node, Chars) and node.kind is MarkupKind.TEXT


def _is_block(node: MarkupNode, around: _Surroundings) -> bool:
    return not around.is_inline(node) if isinstance(node, Tag) else node.kind is MarkupKind.DECLARATION


def _is_free(run: Sequence[MarkupNode]) -> bool:
    return all(isinstance(node, Chars) and node.free for node in run)


def _write(node: MarkupNode, around: _Surroundings) -> str:
    return _write_element(node, around) if isinstance(node, Tag) else node.raw


def _start_tag(tag: Tag, around: _Surroundings) -> str:
    """Return a start tag without its end. A block's start tag has one line per attribute if one line is too short."""
    element = around.elements.get(tag.name)
    known = {each.name: each for each in attributes_of(element.node)} if element else {}
    order = {name: number for number, name in enumerate(known)}
    pairs = sorted(tag.attributes, key=lambda pair: order.get(pair[0], len(order)))
    attributes = []
    for name, quoted in pairs:
        value = quoted[1:-1]
        if name in known and known[name].kind in (PATHS, SOME_PATHS):
            value = " ".join(value.split())
        attributes.append(f"{name}={quoted[0]}{value}{quoted[0]}" if '"' in value else f'{name}="{value}"')
    line = " ".join([f"<{tag.name}", *attributes])
    if around.is_inline(tag) or len(f"{around.indent}{line}/>") <= _WIDTH:
        return line
    return f"<{tag.name} " + ("\n" + around.indent + " " * (len(tag.name) + 2)).join(attributes)


def _laid_out(nodes: Sequence[MarkupNode], around: _Surroundings, ending: str) -> str | None:
    """Return a block with all lines but the first indented, or None if the block must not change.

    `ending` is the whitespace at its end.
    """
    mode, indent = around.whitespace, around.indent
    if mode is Whitespace.PRESERVE:
        return None  # the lines and indentation around a block are part of it
    kept = "\n".join(_indented(_lines(nodes, around), indent)).strip("\n").removeprefix(indent)
    meant = _meaning(nodes, mode)
    for body in dict.fromkeys((kept.strip(_BLANK), kept.lstrip(_BLANK), kept)):
        if body.endswith(tuple(_BLANK)) and "\n" not in ending:
            continue  # editors remove a space at the end of a line
        if _meaning(read_markup(f"\n{indent}{body}\n"), mode) == meant:
            return body
    return None


def _meaning(nodes: Sequence[MarkupNode], mode: Whitespace) -> tuple[list[str | None], bool]:
    """Return what formatting must not change: the text of a block, and whether it has unintended indentation.

    The text has None for each tag. Unintended indentation is a warning.
    """
    pieces: list[str | None] = []
    for is_tag, group in groupby(nodes, key=lambda node: isinstance(node, Tag)):
        if is_tag:
            pieces += [None for _ in group]
        elif text := "".join(node.value for node in group if isinstance(node, Chars)):
            pieces.append(text)
    finished = [piece for piece in finish(pieces, mode) if piece != ""] if pieces else []
    return finished, mode is Whitespace.DEDENT and stray_indentation(pieces) is not None


@dataclass(slots=True)
class _Line:
    """Line of output. `has_text` is true if the line contains more than whitespace, comments and CDATA marks."""

    raw: str = ""
    has_text: bool = False


def _lines(nodes: Sequence[MarkupNode], around: _Surroundings) -> list[_Line]:
    lines = [_Line()]
    for node in nodes:
        if isinstance(node, Tag) or node.kind is MarkupKind.COMMENT:
            lines[-1].raw += _write(node, around)
            lines[-1].has_text |= isinstance(node, Tag)
            continue
        is_cdata = node.kind is MarkupKind.CDATA
        lines[-1].raw += CDATA_START * is_cdata
        for number, part in enumerate((node.value if is_cdata else node.raw).split("\n")):
            if number:
                lines.append(_Line())
            lines[-1].raw += part
            lines[-1].has_text |= bool(part.strip(_BLANK))
        lines[-1].raw += CDATA_END * is_cdata
    return lines


def _indented(lines: Sequence[_Line], indent: str) -> list[str]:
    """Replace the indentation that all lines share with `indent`. A first line that follows a tag has none."""
    behind_tag = lines[0] if lines[0].has_text else None
    with_text = [line.raw for line in lines if line.has_text and line is not behind_tag]
    margin = commonprefix([raw[: len(raw) - len(raw.lstrip(_BLANK))] for raw in with_text])
    found = []
    for line in lines:
        if not line.raw.strip(_BLANK):
            found.append("")
        elif not line.has_text:
            found.append(indent + line.raw.strip(_BLANK))
        else:
            found.append(indent + (line.raw if line is behind_tag else line.raw.removeprefix(margin)))
    return found
