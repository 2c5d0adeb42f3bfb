"""Elements, laid out: one block on a line, start tags with one order of attributes, text blocks as `block` allows.

Comes in: the markup of a valid document. Goes out: its text. This file knows which elements stand in the text around
them, whose content is exact, and where the rules of whitespace change; what a block of text means, it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from promptcache.language.format.block import beginning, ending, laid_out
from promptcache.language.format.markup import Chars, Kind, Node, Tag
from promptcache.language.schema import Whitespace
from promptcache.language.syntax.elements import ATTRIBUTES

WIDTH = 120
"""Where a start tag is broken, and where text that shares a line with its tags gets lines of its own."""

_INDENT = "  "
_PATHS = frozenset({"requires", "excludes", "after", "modules"})


class Dialect(NamedTuple):
    """How the elements of a kind of document are laid out.

    Attributes:
        inline: Elements that are part of the text around them. exact: Elements whose content is not touched. order:
        For elements that have one, the order of their attributes.
    """

    inline: frozenset[str]
    exact: frozenset[str]
    order: Mapping[str, Sequence[str]]


PROMPT = Dialect(frozenset({"text"}), frozenset({"text", "arg"}), {"prompt": ("schema", "version"), "use": ("module",)})
SCHEMA = Dialect(frozenset({"parameter", "text"}), frozenset({"text"}), ATTRIBUTES)


class Surroundings(NamedTuple):
    """What an element takes from around it."""

    dialect: Dialect
    whitespace: Whitespace
    indent: str

    def within(self, tag: Tag) -> Surroundings:
        """Return the surroundings of what stands in `tag`."""
        dialect, whitespace = self.dialect, self.whitespace
        if dialect is SCHEMA and tag.name == "example":
            dialect, whitespace = PROMPT, Whitespace.DEDENT
        elif dialect is SCHEMA and tag.name == "doc":
            whitespace = Whitespace.DEDENT
        elif dialect is SCHEMA and tag.name in {"schema", "module"}:
            written = dict(tag.attributes).get("whitespace", f'"{whitespace}"')[1:-1]
            whitespace = Whitespace(Chars(Kind.TEXT, written).value)
        return Surroundings(dialect, whitespace, self.indent + _INDENT)


class _Item(NamedTuple):
    """A child that is written: `glued` ones bring the whitespace around them, others get `gap` newlines before them."""

    text: str
    gap: int = 1
    glued: bool = False


def write_element(tag: Tag, around: Surroundings) -> str:
    """Return an element, from its start tag to its end."""
    head = _start_tag(tag, around)
    if tag.name in around.dialect.exact or tag.name in around.dialect.inline:
        inner = tag.inner if tag.name in around.dialect.exact or tag.inner.strip(" \t\n") else ""
    else:
        inner = _content(tag, head, around)
    return f"{head}>{inner}</{tag.name}>" if inner else f"{head}/>"


def write_top(nodes: Sequence[Node], around: Surroundings) -> str:
    """Return what stands in no element: the root, comments, the declaration."""
    items = _items(nodes, around)
    return _joined(list(items), "") + "\n"


def _content(tag: Tag, head: str, around: Surroundings) -> str:
    inside = around.within(tag)
    on_one_line = "\n" not in tag.inner
    if on_one_line and _is_text(tag.children, inside.dialect):
        line = "".join(_written(tag.children, inside))
        if _fits(tag, head, line, around):
            return line
    items = list(_items(tag.children, inside))
    if not items:
        return ""
    if on_one_line and around.dialect is PROMPT and tag.name != "prompt":
        line = "".join(item.text for item in items)
        if _fits(tag, head, line, around):
            return line
    before = "" if items[0].glued else f"\n{inside.indent}"
    after = "" if items[-1].glued else f"\n{around.indent}"
    return f"{before}{_joined(items, inside.indent)}{after}"


def _fits(tag: Tag, head: str, line: str, around: Surroundings) -> bool:
    return "\n" not in head + line and len(f"{around.indent}{head}>{line}</{tag.name}>") <= WIDTH


def _joined(items: Sequence[_Item], indent: str) -> str:
    parts = []
    for number, item in enumerate(items):
        if number and not item.glued and not items[number - 1].glued:
            parts.append("\n" * item.gap + indent if item.gap else " ")
        parts.append(item.text)
    return "".join(parts)


def _items(nodes: Sequence[Node], around: Surroundings) -> Iterator[_Item]:
    """Yield the blocks among `nodes` and the comments between them."""
    space = "\n"
    for is_block, group in groupby(nodes, key=lambda node: _is_block(node, around.dialect)):
        if is_block:
            for node in group:
                yield _Item(_write(node, around), _gap(space))
                space = "\n"
            continue
        run = list(group)
        if _is_free(run):
            for node in run:
                if isinstance(node, Chars) and node.kind is Kind.TEXT:
                    space = node.raw
                else:
                    yield _Item(_write(node, around), _comment_gap(space))
                    space = "\n"
        else:
            yield _text_item(run, around)
            space = ending(run)


def _text_item(run: Sequence[Node], around: Surroundings) -> _Item:
    body = laid_out(run, around.whitespace, around.indent, lambda tag: write_element(tag, around))
    if body is None:
        return _Item("".join(_written(run, around)), glued=True)
    return _Item(body, _gap(beginning(run)))


def _gap(space: str) -> int:
    """Return 2 where one line or more was left blank."""
    return 2 if space.count("\n") > 1 else 1


def _comment_gap(space: str) -> int:
    """Return 0 for a comment that stands on the line of what comes before it."""
    return _gap(space) if "\n" in space else 0


def _is_block(node: Node, dialect: Dialect) -> bool:
    return node.name not in dialect.inline if isinstance(node, Tag) else node.kind is Kind.DECLARATION


def _is_free(run: Sequence[Node]) -> bool:
    return all(isinstance(node, Chars) and node.free for node in run)


def _is_text(nodes: Sequence[Node], dialect: Dialect) -> bool:
    return not any(_is_block(node, dialect) for node in nodes) and not _is_free(nodes)


def _written(nodes: Sequence[Node], around: Surroundings) -> Iterator[str]:
    return (_write(node, around) for node in nodes)


def _write(node: Node, around: Surroundings) -> str:
    return write_element(node, around) if isinstance(node, Tag) else node.raw


def _start_tag(tag: Tag, around: Surroundings) -> str:
    """Return a start tag without its end; a block's gets a line for each attribute where one line is too short."""
    order = {name: number for number, name in enumerate(around.dialect.order.get(tag.name, ()))}
    pairs = sorted(tag.attributes, key=lambda pair: order.get(pair[0], len(order)))
    attributes = [f"{name}={_value(name, quoted, tag, around)}" for name, quoted in pairs]
    line = " ".join([f"<{tag.name}", *attributes])
    if tag.name in around.dialect.inline or len(f"{around.indent}{line}/>") <= WIDTH:
        return line
    return f"<{tag.name} " + ("\n" + around.indent + " " * (len(tag.name) + 2)).join(attributes)


def _value(name: str, quoted: str, tag: Tag, around: Surroundings) -> str:
    value = quoted[1:-1]
    if around.dialect is SCHEMA and name in _PATHS and tag.name in ATTRIBUTES:
        value = " ".join(value.split())
    return quoted[0] + value + quoted[0] if '"' in value else f'"{value}"'
