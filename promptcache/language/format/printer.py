"""Print schemas and other trees of nodes: their markup, written as the formatter writes it.

Parsing the document of a schema gives the same checked content. Text from a `src` file is not copied: the document
refers to the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from itertools import groupby

from promptcache.diagnostics import LanguageError, SchemaError, Span, diagnostic
from promptcache.language.format.markup import Chars, MarkupKind, MarkupNode, Tag, read_markup
from promptcache.language.format.writer import write_markup
from promptcache.language.syntax.attributes import write_attributes
from promptcache.language.syntax.elements import ELEMENTS
from promptcache.language.syntax.nodes import (
    Combination,
    Doc,
    Example,
    Item,
    Module,
    Parameter,
    SchemaDocument,
    Text,
    Turn,
)
from promptcache.language.syntax.source import NOT_IN_XML
from promptcache.language.syntax.whitespace import is_blank

_NAMES = {element.node: name for name, element in ELEMENTS.items()}
_IN_ATTRIBUTES = str.maketrans({"\n": "&#10;", "\t": "&#9;", "\r": "&#13;", '"': "&quot;"})


def print_schema(schema: SchemaDocument) -> str:
    """Return a schema as an XML document.

    Raises:
        SchemaError: a text has a character that XML cannot represent.
    """
    root = element("schema", write_attributes(schema), _children(schema.children))
    return print_document(root, schema.span, SchemaError)


def print_document(root: Tag, span: Span, error: type[LanguageError]) -> str:
    """Return the XML of a document.

    Raises:
        LanguageError: Of the class `error`, reported at `span`. A text has a character that XML cannot hold.
    """
    printed = write_markup([root], is_prompt=root.name == "prompt")
    if NOT_IN_XML.search(printed):
        message = "the document contains a control character or a lone surrogate, which XML does not allow"
        raise error([diagnostic("PC011", message, span)])
    return printed


def element(name: str, attributes: Iterable[tuple[str, str]], children: Iterable[MarkupNode | str] = ()) -> Tag:
    """Return the markup of an element. Strings are texts."""
    nodes = tuple(_text(each) if isinstance(each, str) else each for each in children if each != "")
    inner = "".join(_source(each) for each in nodes)
    quoted = ((each, f'"{escape(value, quote=False).translate(_IN_ATTRIBUTES)}"') for each, value in attributes)
    return Tag(name, tuple(quoted), nodes, inner)


def holds_line_break(text: str) -> bool:
    """Return whether a text has line breaks or tabs, which an attribute shows as character references."""
    return any(character in text for character in "\n\t\r")


def _text(text: str) -> Chars:
    return Chars(MarkupKind.TEXT, escape(text, quote=False).replace("\r", "&#13;"))


def _source(node: MarkupNode) -> str:
    if isinstance(node, Chars):
        return node.raw
    attributes = "".join(f" {name}={quoted}" for name, quoted in node.attributes)
    return f"<{node.name}{attributes}>{node.inner}</{node.name}>"


def _children(items: tuple[Item | Combination, ...]) -> Iterator[MarkupNode | str]:
    """Yield the content of an element; the writer sets the whitespace between blocks, all other text is exact."""
    for inline, group in groupby(items, key=lambda item: isinstance(item, Text | Parameter)):
        block = list(group)
        if not (inline and all(isinstance(item, Text) and not item.exact and is_blank(item.text) for item in block)):
            yield from map(_item, block)


def _item(item: Item | Combination) -> MarkupNode | str:
    children = getattr(item, "children", ())
    match item:
        case Text():
            return element("text", (), [item.text]) if item.exact else item.text
        case Doc():
            return element("doc", (), [item.text])
        case Turn():
            return element(item.role.value, (), _children(children))
        case Example():
            return element("example", write_attributes(item), read_markup(item.prompt))
        case Module(src=str()):
            children = tuple(child for child in children if isinstance(child, Doc))
    return element(_NAMES[type(item)], write_attributes(item), _children(children))
