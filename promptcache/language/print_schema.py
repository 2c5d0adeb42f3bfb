"""Print a schema as an XML document; parsing the document gives the same checked content.

Text from a `src` file is not copied: the document refers to the file.
"""

from __future__ import annotations

from itertools import groupby

from promptcache.diagnostics import SchemaError
from promptcache.language.schema import Schema
from promptcache.language.syntax.attributes import write_attributes
from promptcache.language.syntax.elements import ELEMENTS
from promptcache.language.syntax.nodes import Combination, Doc, Example, Item, Module, Parameter, Text, Turn
from promptcache.language.syntax.whitespace import is_blank
from promptcache.language.syntax.write_xml import Verbatim, Written, print_document

_NAMES = {element.node: name for name, element in ELEMENTS.items()}


def print_schema(schema: Schema) -> str:
    """Return a schema as an XML document.

    Raises:
        SchemaError: a text has a character that XML cannot represent.
    """
    root = Written("schema", write_attributes(schema), _children(schema.children))
    return print_document(root, schema.span, SchemaError)


def _children(items: tuple[Item | Combination, ...]) -> tuple[Written | str, ...]:
    """Return the content of an element; the printer sets the whitespace between blocks, all other text is exact."""
    found: list[Written | str] = []
    for inline, group in groupby(items, key=lambda item: isinstance(item, Text | Parameter)):
        block = list(group)
        if not (inline and all(isinstance(item, Text) and not item.exact and is_blank(item.text) for item in block)):
            found += (_item(item) for item in block)
    return tuple(found)


def _item(item: Item | Combination) -> Written | str:
    name, children = _NAMES[type(item)], getattr(item, "children", ())
    match item:
        case Text():
            return Written("text", (), (item.text,), inline=True) if item.exact else item.text
        case Doc():
            return Written("doc", (), (item.text,))
        case Turn():
            return Written(item.role.value, (), _children(children))
        case Example():
            return Written("example", write_attributes(item), (Verbatim(item.prompt),))
        case Module(src=str()):
            children = tuple(child for child in children if isinstance(child, Doc))
    return Written(name, write_attributes(item), _children(children), inline=ELEMENTS[name].is_inline)
