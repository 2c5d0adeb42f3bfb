"""A schema document to its declaration.

Comes in: XML text or a path. Goes out: a `Schema` with a span on every node, or every fault of structure that the
document has. This file does not ask whether names, paths and rules make sense; `check_schema` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from promptcache.diagnostics import Diagnostic, SchemaError, Span, did_you_mean, in_order
from promptcache.language.attributes import AttributeReader
from promptcache.language.elements import ATTRIBUTES, CHILDREN
from promptcache.language.included import read_text
from promptcache.language.read_rules import RULE_ATTRIBUTES, read_rule
from promptcache.language.schema import (
    Combination,
    Context,
    Doc,
    Example,
    Item,
    Module,
    Parameter,
    ParameterType,
    Role,
    RuleList,
    Scaffold,
    Schema,
    Text,
    Turn,
    Union,
    Whitespace,
)
from promptcache.language.templates import read_text as read_text_of
from promptcache.language.xml import Characters, Element, parse_xml

__all__ = ["ATTRIBUTES", "load_schema", "parse_schema"]


def parse_schema(text: str | bytes, *, source: str = "<schema>", folder: Path | None = None) -> Schema:
    """Read a schema document.

    Args:
        text: The document; bytes must be UTF-8.
        source: Its name in diagnostics.
        folder: Where `src` files may lie; without one, `src` is an error.

    Raises:
        SchemaError: every fault of XML or structure, in the order of their places.
    """
    root = parse_xml(text, source, SchemaError)
    reader = _SchemaReader(folder)
    schema = reader.schema(root)
    if reader.faults:
        raise SchemaError(in_order(reader.faults))
    return schema


def load_schema(path: str | Path, *, context: Mapping[str, object] | None = None) -> Schema:
    """Read a schema file; its `src` files lie in its own folder or below.

    Args:
        path: A document, or a template of one, `*.xml.j2`.
        context: What the template may use: plain data, as JSON has it.

    Raises:
        SchemaError: the file cannot be read, or what `parse_schema` finds.
    """
    path = Path(path)
    return parse_schema(read_text_of(path, context, SchemaError), source=str(path), folder=path.parent)


class _SchemaReader:
    """Turns elements into items; `faults` grows as it goes."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.faults: list[Diagnostic] = []

    def schema(self, root: Element) -> Schema:
        if root.name != "schema":
            mend = "prompts are read by parse_prompt" if root.name == "prompt" else did_you_mean(root.name, ["schema"])
            message = f"a schema document begins with <schema>, not <{root.name}>"
            raise SchemaError([*self.faults, Diagnostic(code="PC107", message=message, span=root.name_span, help=mend)])
        attributes = self._attributes(root)
        separator = attributes.escaped("separator")
        return Schema(
            name=attributes.needed("name"),
            children=self._items(root),
            span=root.span,
            version=attributes.text("version"),
            context=attributes.choice("context", Context) or Context.GUARANTEED,
            whitespace=attributes.choice("whitespace", Whitespace) or Whitespace.DEDENT,
            separator="\n" if separator is None else separator,
            places=attributes.places,
        )

    def _attributes(self, element: Element) -> AttributeReader:
        return AttributeReader(element, ATTRIBUTES[element.name], self.faults)

    def _items(self, parent: Element) -> tuple[Item, ...]:
        items: list[Item] = []
        for node in parent.children:
            if isinstance(node, Characters):
                items.append(Text(text=node.text, span=node.span))
            elif self._allowed(node, parent):
                items.append(self._item(node))
        return tuple(items)

    def _allowed(self, element: Element, parent: Element) -> bool:
        if element.name in CHILDREN.get(parent.name, ()):
            return True
        if element.name in ATTRIBUTES:
            message = f"<{element.name}> cannot stand inside <{parent.name}>"
            self._fault("PC102", message, element.name_span, _instead(element, parent))
        else:
            mend = did_you_mean(element.name, ATTRIBUTES, "<{}>")
            self._fault("PC101", f"there is no element <{element.name}>", element.name_span, mend)
        return False

    def _item(self, element: Element) -> Item:
        match element.name:
            case "module":
                return self._module(element)
            case "union":
                return self._union(element)
            case "parameter":
                return self._parameter(element)
            case "scaffold":
                return self._scaffold(element)
            case "example":
                return self._example(element)
            case "rules":
                return self._rules(element)
            case "text":
                self._attributes(element)
                return Text(text=self._content(element), span=element.span, exact=True)
            case "doc":
                self._attributes(element)
                return Doc(text=self._content(element), span=element.span)
            case role:
                self._attributes(element)
                return Turn(role=Role(role), children=self._items(element), span=element.span)

    def _module(self, element: Element) -> Module:
        attributes = self._attributes(element)
        src = attributes.text("src")
        children = self._items(element)
        if src is not None:
            children += self._included(element, src, children)
        return Module(
            name=attributes.needed("name"),
            children=children,
            span=element.span,
            required=attributes.flag("required") or False,
            requires=attributes.words("requires"),
            excludes=attributes.words("excludes"),
            after=attributes.words("after"),
            cache=attributes.flag("cache"),
            src=src,
            reserve=attributes.number("reserve"),
            context=attributes.choice("context", Context),
            whitespace=attributes.choice("whitespace", Whitespace),
            separator=attributes.escaped("separator"),
            places=attributes.places,
        )

    def _included(self, element: Element, src: str, children: tuple[Item, ...]) -> tuple[Text, ...]:
        span = next(attribute.value_span for attribute in element.attributes if attribute.name == "src")
        content = (child for child in children if not isinstance(child, Doc) and not _blank(child))
        if extra := next(content, None):
            message = "a module with src takes its text from the file and holds nothing else"
            self._fault("PC109", message, extra.span, "move this into a module of its own")
        found = read_text(src, self.folder, span)
        if isinstance(found, Diagnostic):
            self.faults.append(found)
            return ()
        return (Text(text=found, span=span, exact=True),)

    def _union(self, element: Element) -> Union:
        attributes = self._attributes(element)
        children: list[Module | Doc] = []
        for item in self._items(element):
            if isinstance(item, Module | Doc):
                children.append(item)
            elif not _blank(item):
                self._fault("PC106", "a union holds modules, no text", item.span, "put the text into a module")
        return Union(
            children=tuple(children),
            span=element.span,
            name=attributes.text("name"),
            required=attributes.flag("required") or False,
            default=attributes.text("default"),
            places=attributes.places,
        )

    def _parameter(self, element: Element) -> Parameter:
        attributes = self._attributes(element)
        self._hollow(element)
        return Parameter(
            name=attributes.needed("name"),
            length=attributes.needed_number("length"),
            span=element.span,
            default=attributes.text("default"),
            placeholder=attributes.either("placeholder", "scaffold"),
            required=attributes.flag("required") or False,
            type=attributes.choice("type", ParameterType) or ParameterType.TEXT,
            choices=attributes.alternatives("choices"),
            pattern=attributes.text("pattern"),
            places=attributes.places,
        )

    def _scaffold(self, element: Element) -> Scaffold:
        attributes = self._attributes(element)
        self._hollow(element)
        attributes.needed("modules")
        return Scaffold(
            modules=attributes.words("modules"),
            span=element.span,
            name=attributes.text("name"),
            places=attributes.places,
        )

    def _example(self, element: Element) -> Item:
        attributes = self._attributes(element)
        prompts = [node for node in element.children if isinstance(node, Element) and node.name == "prompt"]
        for node in element.children:
            if isinstance(node, Element) and node not in prompts[:1]:
                mend = "write one <prompt> in each example"
                self._fault("PC102", f"<{node.name}> cannot stand inside <example>", node.name_span, mend)
            elif isinstance(node, Characters) and not node.blank:
                self._fault("PC106", "<example> holds no text of its own", node.span, "write it into the <prompt>")
        if not prompts:
            self._fault("PC104", "<example> needs a prompt", element.name_span, 'write <prompt schema="…"> into it')
            return Doc(text="", span=element.span)
        prompt = prompts[0]
        return Example(
            prompt=prompt.source.text[prompt.start : prompt.end],
            prompt_span=prompt.span,
            span=element.span,
            name=attributes.text("name"),
            valid=attributes.flag("valid"),
            contains=attributes.text("contains"),
            places=attributes.places,
        )

    def _rules(self, element: Element) -> RuleList:
        self._attributes(element)
        children: list[Combination | Doc] = []
        for node in element.children:
            if isinstance(node, Characters):
                if not node.blank:
                    self._fault("PC106", "<rules> holds no text", node.span, "write rules, or a <doc>")
            elif self._allowed(node, element) and node.name == "doc":
                children.append(Doc(text=self._content(node), span=node.span))
            elif node.name in RULE_ATTRIBUTES:
                self._hollow(node)
                children.append(read_rule(node, self.faults))
        return RuleList(children=tuple(children), span=element.span)

    def _hollow(self, element: Element) -> None:
        for item in self._items(element):
            if not _blank(item):
                self._fault("PC106", f"<{element.name}> holds no text", item.span, f"write <{element.name} …/>")

    def _content(self, element: Element) -> str:
        return "".join(item.text for item in self._items(element) if isinstance(item, Text))

    def _fault(self, code: str, message: str, span: Span, mend: str | None = None) -> None:
        self.faults.append(Diagnostic(code=code, message=message, span=span, help=mend))


def _blank(item: Item) -> bool:
    return isinstance(item, Text) and not item.exact and not item.text.strip(" \t\n")


def _instead(element: Element, parent: Element) -> str | None:
    match parent.name, element.name:
        case "union", _:
            return "a union holds modules: put it into one"
        case "text" | "doc", _:
            return "write &lt; for a literal <, or use <![CDATA[…]]>"
        case _, "scaffold":
            return "write the scaffold outside the turn; its paths reach inside"
        case _, "rules" | "example":
            return f"write <{element.name}> directly in the schema; its paths reach everywhere"
        case _, "require" | "exclude" | "choose" | "assert":
            return "put it into <rules> at the top level of the schema"
        case _, "schema":
            return "a document has one <schema>, which is its root"
    return None
