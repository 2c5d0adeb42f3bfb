"""What the strategies need of XML trees: text in its place, blocks on their own lines, and documents as strings.

Comes in: lxml elements. Goes out: the same elements, changed, or text. Knows no schema and no prompt, only which
elements are inline.
"""

from __future__ import annotations

from lxml import etree

# Whitespace beside these belongs to the text that they stand in; inside `doc` it is nobody's business.
_INLINE = frozenset({"parameter", "text"})
_OPAQUE = frozenset({"parameter", "text", "doc", "arg"})


def to_text(root: etree._Element) -> str:
    """Return the document as text."""
    return etree.tostring(root, encoding="unicode")


def append_text(element: etree._Element, text: str) -> None:
    """Write `text` after everything that `element` holds."""
    if not text:
        return
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text


def indent(element: etree._Element, line: str = "\n") -> None:
    """Write blocks that stand beside blocks only on lines of their own; no text is touched."""
    if element.tag in _OPAQUE or not len(element):
        return
    children = list(element)
    if _is_block(children[0]) and not element.text:
        element.text = line + "  "
    for child, following in zip(children, [*children[1:], None], strict=True):
        if _is_block(child):
            indent(child, line + "  ")
            if not child.tail and (following is None or _is_block(following)):
                child.tail = line if following is None else line + "  "


def _is_block(element: etree._Element) -> bool:
    return isinstance(element.tag, str) and element.tag not in _INLINE
