"""Write a tree of elements as XML text. Elements are indented if that does not change the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lxml import etree

from promptcache.diagnostics import LanguageError, Span, diagnostic

_INDENT = "  "


@dataclass(frozen=True, slots=True)
class Written:
    """Element to write.

    `inline` elements are part of the text around them. If the children include text or an inline element, no whitespace
    is added between the children. Otherwise each child is written on a separate line.
    """

    name: str
    attributes: tuple[tuple[str, str], ...]
    children: tuple[Written | Verbatim | str, ...] = ()
    inline: bool = False


class Verbatim(NamedTuple):
    """Element that is already XML text."""

    xml: str
    inline: bool = False


def holds_line_break(text: str) -> bool:
    """Return whether a text has line breaks or tabs, which an attribute shows as character references."""
    return any(character in text for character in "\n\r\t")


def print_document(root: Written, span: Span, error: type[LanguageError]) -> str:
    """Return the XML of a document.

    Raises:
        LanguageError: Of the class `error`, reported at `span`. A text or name has a character that XML cannot hold.
    """
    try:
        element = _element(root, 0)
    except ValueError:
        message = "the document contains a control character, a lone surrogate or a name that XML does not allow"
        raise error([diagnostic("PC011", message, span)]) from None
    return etree.tostring(element, encoding="unicode") + "\n"


def _element(written: Written | Verbatim, depth: int) -> etree._Element:
    if isinstance(written, Verbatim):
        return etree.fromstring(
            written.xml, etree.XMLParser(resolve_entities=False, no_network=True, strip_cdata=False)
        )
    element = etree.Element(written.name, dict(written.attributes))
    inline = any(isinstance(child, str) or child.inline for child in written.children)
    for child in written.children:
        if isinstance(child, str):
            _append_text(element, child)
            continue
        if not inline:
            _append_text(element, "\n" + _INDENT * (depth + 1))
        element.append(_element(child, depth + 1))
    if written.children and not inline:
        _append_text(element, "\n" + _INDENT * depth)
    return element


def _append_text(element: etree._Element, text: str) -> None:
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text
