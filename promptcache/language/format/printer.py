"""Print schemas and prompts: their markup, written as the formatter writes it.

Parsing the document of a schema gives the same checked content. Text from a `src` file is not copied: the document
refers to the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby

from promptcache.diagnostics import LanguageError, PromptError, SchemaError, Span, diagnostic
from promptcache.language.format.markup import Chars, MarkupKind, MarkupNode, Tag, read_markup
from promptcache.language.format.writer import write_markup
from promptcache.language.syntax import nodes
from promptcache.language.syntax.attributes import write_attributes
from promptcache.language.syntax.elements import ELEMENTS
from promptcache.language.syntax.names import RESERVED_MODULES, is_element
from promptcache.language.syntax.source import NOT_IN_XML
from promptcache.language.syntax.whitespace import finish, is_blank

_NAMES = {element.node: name for name, element in ELEMENTS.items()}
_IN_ATTRIBUTES = str.maketrans({"\n": "&#10;", "\t": "&#9;", "\r": "&#13;", '"': "&quot;"})


def print_schema(schema: nodes.SchemaDocument) -> str:
    """Return a schema as an XML document.

    Raises:
        SchemaError: a text has a character that XML cannot represent.
    """
    return _printed(_element("schema", write_attributes(schema), _children(schema.children)), schema.span, SchemaError)


def print_prompt(prompt: nodes.PromptDocument) -> str:
    """Return a prompt as an XML document.

    Raises:
        PromptError: A text has a character that XML cannot represent, or a message has a part without a form in XML.
    """
    faults = []
    for message in prompt.messages:
        if message.tool_fields or message.reasoning:
            what = "a message of tools" if message.tool_fields else "the reasoning of an answer"
            fix = "leave it out, or keep the prompt as messages"
            faults.append(diagnostic("PC011", f"{what} has no form in XML", message.span, fix))
    if faults:
        raise PromptError(faults)
    attributes, children = _arguments(prompt.arguments, reserved=("schema", "version"))
    if prompt.version is not None:
        attributes.insert(0, ("version", prompt.version))
    if prompt.answer_format is not None:
        children.append(_element("answer", write_attributes(prompt.answer_format)))
    children += map(_reference, prompt.references)
    for message in prompt.messages:
        child = _element("text", (), [message.text])
        if message.role is not None:
            as_it_is = not message.text or finish([message.text], nodes.Whitespace.DEDENT) == [message.text]
            child = _element(message.role.value, (), [message.text if as_it_is else child])
        children.append(child)
    return _printed(_element("prompt", (("schema", prompt.schema), *attributes), children), prompt.span, PromptError)


def _printed(root: Tag, span: Span, error: type[LanguageError]) -> str:
    printed = write_markup([root], is_prompt=root.name == "prompt")
    if NOT_IN_XML.search(printed):
        message = "the document contains a control character or a lone surrogate, which XML does not allow"
        raise error([diagnostic("PC011", message, span)])
    return printed


def _element(name: str, attributes: Iterable[tuple[str, str]], children: Iterable[MarkupNode | str] = ()) -> Tag:
    """Return the markup of an element. Strings are texts."""
    inside = tuple(
        Chars(MarkupKind.TEXT, escape(each, quote=False).replace("\r", "&#13;")) if isinstance(each, str) else each
        for each in children
        if each != ""
    )
    quoted = ((each, f'"{escape(value, quote=False).translate(_IN_ATTRIBUTES)}"') for each, value in attributes)
    return Tag(name, tuple(quoted), inside, "".join(map(_source, inside)))


def _source(node: MarkupNode) -> str:
    if isinstance(node, Chars):
        return node.raw
    attributes = "".join(f" {name}={quoted}" for name, quoted in node.attributes)
    return f"<{node.name}{attributes}>{node.inner}</{node.name}>"


def _reference(reference: nodes.Reference) -> Tag:
    attributes, children = _arguments(reference.arguments, reserved=("module",))
    inner = (*children, *map(_reference, reference.children))
    if not reference.absolute and is_element(reference.path) and reference.path not in RESERVED_MODULES:
        return _element(reference.path, attributes, inner)
    path = f"/{reference.path}" if reference.absolute else reference.path
    return _element("use", (("module", path), *attributes), inner)


def _arguments(
    arguments: Sequence[nodes.Argument], reserved: tuple[str, ...]
) -> tuple[list[tuple[str, str]], list[Tag]]:
    """Return arguments as attributes if all of them can be; otherwise all as <arg> elements, to keep their order.

    An attribute would show line breaks and tabs as references. An element has one attribute of a name, so arguments
    with equal names are <arg> elements: reading them is PC403.
    """
    if len({each.name for each in arguments}) == len(arguments) and all(
        is_element(each.name) and each.name not in reserved and {*"\n\t\r"}.isdisjoint(each.text) for each in arguments
    ):
        return [(each.name, each.text) for each in arguments], []
    return [], [_element("arg", (("name", each.name),), (each.text,)) for each in arguments]


def _children(items: tuple[nodes.Item | nodes.Combination, ...]) -> Iterator[MarkupNode | str]:
    """Yield the content of an element; the writer sets the whitespace between blocks, all other text is exact."""
    for inline, group in groupby(items, key=lambda item: isinstance(item, nodes.Text | nodes.Parameter)):
        block = list(group)
        if not (
            inline and all(isinstance(item, nodes.Text) and not item.exact and is_blank(item.text) for item in block)
        ):
            yield from map(_item, block)


def _item(item: nodes.Item | nodes.Combination) -> MarkupNode | str:
    children = getattr(item, "children", ())
    match item:
        case nodes.Text():
            return _element("text", (), [item.text]) if item.exact else item.text
        case nodes.Doc():
            return _element("doc", (), [item.text])
        case nodes.Turn():
            return _element(item.role.value, (), _children(children))
        case nodes.Example():
            return _element("example", write_attributes(item), read_markup(item.prompt))
        case nodes.Module(src=str()):
            children = tuple(child for child in children if isinstance(child, nodes.Doc))
    return _element(_NAMES[type(item)], write_attributes(item), _children(children))
