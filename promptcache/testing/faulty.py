"""A fault in a prompt, and where its diagnostic must point.

Comes in: a prompt tree that somebody has broken. Goes out: its text with a line and a column. Places are found by a
parser of their own (expat) or by marker texts, never by asking the language.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from xml.parsers import expat

from lxml import etree

from promptcache.testing.choices import Said
from promptcache.testing.prompt_xml import PromptTree

MARK = "stray"
"""What faults are made of. It may stand in a prompt anyhow: modules can be called so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidPrompt:
    """A prompt with one fault.

    Attributes:
        xml: The document.
        code: Of the first diagnostic that it must get. PC5xx is found when the prompt is planned, all others before.
        mutation: What was done to a valid prompt, in a few words.
        line, column: Where that diagnostic must point, both from 1.
    """

    xml: str
    code: str
    mutation: str
    line: int
    column: int


Spot: TypeAlias = Callable[[str], int]
"""Finds a fault in the finished document; the answer is an offset in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What must be said about a tree that was broken.

    Attributes:
        edit: Breaks the finished text further.
        messages: What the prompt ends in instead of its own messages.
    """

    code: str
    spot: Spot
    edit: Callable[[str], str] = str
    messages: Sequence[Said] | None = None

    def applied(self, mutation: str, tree: PromptTree) -> InvalidPrompt:
        """Return the prompt whose tree, already broken, is `tree`."""
        xml = self.edit(tree.document(self.messages))
        line, column = line_and_column(xml, self.spot(xml))
        return InvalidPrompt(xml=xml, code=self.code, mutation=mutation, line=line, column=column)


Way: TypeAlias = Callable[[], Fault]
"""Breaks a tree when it is called."""


def line_and_column(document: str, offset: int) -> tuple[int, int]:
    """Return where an offset lies, both from 1."""
    before = document[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


def at_text(text: str) -> Spot:
    """Point at the first occurrence of `text`, which stands nowhere else in a document of well-formed XML."""
    return lambda document: document.index(text)


def at_last_text(text: str) -> Spot:
    """Point at the last occurrence of `text`."""
    return lambda document: document.rindex(text)


def at_content(element: etree._Element) -> Spot:
    """Point at the first character inside an element."""
    spot = at_tag(element)
    return lambda document: document.index(">", spot(document)) + 1


def at_tag(element: etree._Element) -> Spot:
    """Point at the start tag of an element."""
    number = list(element.getroottree().iter(etree.Element)).index(element)
    return lambda document: _tag_offsets(document)[number]


def at_name(element: etree._Element) -> Spot:
    """Point at the name in a start tag."""
    spot = at_tag(element)
    return lambda document: spot(document) + 1


def at_attribute(element: etree._Element, name: str) -> Spot:
    """Point at an attribute."""
    spot = at_tag(element)
    return lambda document: document.index(f' {name}="', spot(document)) + 1


def at_value(element: etree._Element, name: str) -> Spot:
    """Point at an attribute's value, inside its quotes."""
    spot = at_attribute(element, name)
    return lambda document: spot(document) + len(f'{name}="')


def at_module(element: etree._Element) -> Spot:
    """Point at where a reference names its module; the prompt itself names none and is pointed at whole."""
    match element.tag:
        case "prompt":
            return at_tag(element)
        case "use":
            return at_value(element, "module")
        case _:
            return at_name(element)


def at_argument(element: etree._Element, name: str) -> Spot:
    """Point at an argument of a reference, whichever form it has."""
    for child in element.iterchildren("arg"):
        if child.get("name") == name:
            return at_tag(child)
    return at_attribute(element, name)


def at_last(spots: Sequence[Spot]) -> Spot:
    """Point at whichever place comes last."""
    return lambda document: max(spot(document) for spot in spots)


def _tag_offsets(document: str) -> list[int]:
    """Return the offset of every start tag, in document order."""
    data = document.encode()
    offsets: list[int] = []
    parser = expat.ParserCreate("utf-8")
    parser.StartElementHandler = lambda *_: offsets.append(len(data[: parser.CurrentByteIndex].decode()))
    parser.Parse(data, True)
    return offsets
