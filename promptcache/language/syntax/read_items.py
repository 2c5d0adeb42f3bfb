"""Read the elements of a schema document into items, with a diagnostic for every fault of structure.

The caller reads the files that an `include` names. `check_schema` checks names, paths and rules later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from promptcache.diagnostics import Diagnostic, FaultList, SchemaError, Span, did_you_mean
from promptcache.language.syntax.answers import read_answer
from promptcache.language.syntax.attributes import AttributeReader, num_words
from promptcache.language.syntax.elements import (
    ATTRIBUTES,
    CHILDREN,
    RULE_ATTRIBUTES,
    instead,
    read_example,
    read_parameter,
    read_rule,
)
from promptcache.language.syntax.files import Folder, read_src
from promptcache.language.syntax.include import IncludedItems, IncludeOptions, InheritedOptions, Place
from promptcache.language.syntax.member_files import read_members
from promptcache.language.syntax.names import is_name, name_help, quoted
from promptcache.language.syntax.nodes import (
    Collection,
    Combination,
    Context,
    Doc,
    Item,
    Member,
    Module,
    Placement,
    Role,
    RuleList,
    Scaffold,
    SchemaDocument,
    Text,
    Turn,
    Union,
    Whitespace,
    join_path,
)
from promptcache.language.syntax.source import diagnostic
from promptcache.language.syntax.synonyms import AS_TEXT, HTML, meant
from promptcache.language.syntax.whitespace import is_blank
from promptcache.language.syntax.xml import Characters, Element

MAX_PATHS = 50_000
"""Maximum number of paths and words of conditions in the attributes of a document."""


class Inclusion(NamedTuple):
    """Contents of an `include` element: the file, the selected items, the place of the element, and its depth."""

    href: str
    href_span: Span
    wanted: IncludeOptions
    place: Place
    depth: int


Include: TypeAlias = Callable[[Inclusion, list[Diagnostic]], IncludedItems]
"""Function that returns the items that an `include` adds. Diagnostics are added to the list."""


class SchemaReader:
    """Reader that converts elements into items and collects diagnostics in `faults`."""

    def __init__(self, folder: Folder | None, include: Include) -> None:
        self.faults = FaultList(SchemaError)
        self._folder = folder
        self._include = include
        self._place = Place("", False, InheritedOptions(Whitespace.DEDENT, "\n", Context.PREVIOUS))
        self._depth = self._num_paths = 0
        self._top: list[Item] = []

    def schema(self, root: Element) -> SchemaDocument:
        """Read a schema document.

        Raises:
            SchemaError: The document is not a schema, or it exceeds a limit.
        """
        if root.name != "schema":
            advice = (
                "this document is a prompt, but a schema is expected here"
                if root.name == "prompt"
                else did_you_mean(root.name, ["schema"])
            )
            message = f"a schema document begins with <schema>, not <{root.name}>"
            raise SchemaError([diagnostic("PC107", message, root.name_span, advice)])
        attributes = self._attributes(root)
        separator = attributes.escaped("separator")
        options = InheritedOptions(
            attributes.choice("whitespace", Whitespace) or Whitespace.DEDENT,
            "\n" if separator is None else separator,
            attributes.choice("context", Context) or Context.PREVIOUS,
        )
        with self._inside(Place("", False, options)):
            children = self._items(root)
        return SchemaDocument(
            name=attributes.needed("name"),
            children=(*children, *self._top),
            span=root.span,
            version=attributes.text("version"),
            context=options.context,
            whitespace=options.whitespace,
            separator=options.separator,
            repair=attributes.repair("repair"),
            positions=attributes.choice("positions", Placement),
            places=attributes.places,
        )

    @contextmanager
    def _inside(self, place: Place) -> Iterator[None]:
        before, self._place = self._place, place
        yield
        self._place = before

    def _attributes(self, element: Element) -> AttributeReader:
        return AttributeReader(element, ATTRIBUTES[element.name], self.faults)

    def _items(self, parent: Element) -> tuple[Item, ...]:
        items: list[Item] = []
        self._depth += 1
        for node in parent.children:
            if isinstance(node, Characters):
                items.append(Text(text=node.text, span=node.span))
            elif not self._allowed(node, parent):
                continue
            elif node.name == "include":
                items += self._included(node)
            else:
                items.append(self._item(node))
        self._depth -= 1
        return tuple(items)

    def _allowed(self, element: Element, parent: Element) -> bool:
        self._num_paths += num_words(element, MAX_PATHS - self._num_paths)
        if self._num_paths > MAX_PATHS:
            message = f"the rules of this document name more than {MAX_PATHS} paths"
            raise SchemaError([diagnostic("PC308", message, element.name_span)])
        if element.name in CHILDREN.get(parent.name, ()):
            return True
        if element.name in ATTRIBUTES:
            message = f"<{element.name}> is not allowed inside <{parent.name}>"
            self._fault("PC102", message, element.name_span, instead(element.name, parent.name))
        else:
            here = sorted(CHILDREN.get(parent.name, ()))
            advice = meant(element.name, here, "<{}>") or meant(element.name, ATTRIBUTES, "<{}>")
            advice = AS_TEXT if element.name in HTML else advice
            role = next((each.value for each in element.attributes if each.name == "role"), "")
            if role in set(Role):
                advice = f"a turn is written as <{role}>"
            elif element.name in ATTRIBUTES[parent.name]:
                advice = f'write it as an attribute of <{parent.name}>, {element.name}="…"'
            elif element.name == "prompt":
                advice = instead("prompt", parent.name)
            advice = advice or f"<{parent.name}> can contain: {', '.join(here) or 'text'}"
            self._fault("PC101", f"there is no element <{element.name}>", element.name_span, advice)
        return False

    def _item(self, element: Element) -> Item:
        match element.name:
            case "module":
                return self._module(element)
            case "union":
                return self._union(element)
            case "collection":
                return self._collection(element)
            case "parameter":
                self._hollow(element)
                return read_parameter(element, self.faults)
            case "scaffold":
                return self._scaffold(element)
            case "example":
                return read_example(element, self.faults)
            case "rules":
                return self._rules(element)
            case "text":
                self._attributes(element)
                return Text(text=self._content(element), span=element.span, exact=True)
            case "doc":
                self._attributes(element)
                return Doc(text=self._content(element), span=element.span)
            case "answer":
                self._hollow(element)
                return read_answer(element, self._folder, "schema", self.faults)
            case role:
                self._attributes(element)
                with self._inside(self._place._replace(in_turn=True)):
                    return Turn(role=Role(role), children=self._items(element), span=element.span)

    def _module(self, element: Element) -> Module:
        attributes = self._attributes(element)
        name, src = attributes.needed("name"), attributes.text("src")
        whitespace = attributes.choice("whitespace", Whitespace)
        separator = attributes.escaped("separator")
        context = attributes.choice("context", Context)
        around = self._place.options
        options = InheritedOptions(
            whitespace or around.whitespace,
            around.separator if separator is None else separator,
            context or around.context,
        )
        with self._inside(Place(join_path(self._place.parent, name), False, options)):
            children = self._items(element)
        if src is not None:
            children += self._source(element, src, children)
        return Module(
            name=name,
            children=children,
            span=element.span,
            required=attributes.flag("required") or False,
            requires=attributes.words("requires"),
            excludes=attributes.words("excludes"),
            after=attributes.words("after"),
            cache=attributes.flag("cache"),
            src=self._from_home(src),
            reserve=attributes.number("reserve"),
            context=context,
            whitespace=whitespace,
            separator=separator,
            places=attributes.places,
        )

    def _from_home(self, src: str | None) -> str | None:
        """Return a path of this document, relative to the folder of the schema."""
        return src if src is None or self._folder is None else self._folder.from_home(src)

    def _source(self, element: Element, src: str, children: tuple[Item, ...]) -> tuple[Text, ...]:
        span = next(attribute.value_span for attribute in element.attributes if attribute.name == "src")
        content = (child for child in children if not isinstance(child, Doc) and not _blank(child))
        if extra := next(content, None):
            message = "a module with src cannot have other content"
            self._fault("PC109", message, extra.span, "move this content to a separate module")
        found = read_src(src, self._folder, span)
        if isinstance(found, Diagnostic):
            self.faults.append(found)
            return ()
        return (Text(text=found, span=span, exact=True),)

    def _included(self, element: Element) -> tuple[Item, ...]:
        attributes = self._attributes(element)
        self._hollow(element)
        before = len(self.faults)
        href, select, prefix = attributes.needed("href"), attributes.words("select"), attributes.text("prefix") or ""
        places = dict(attributes.places)
        if prefix and not is_name(prefix):
            self._fault("PC201", f"no name can begin with {quoted(prefix)}", places["prefix"][0], name_help(prefix))
        if len(self.faults) > before:
            return ()
        named = tuple(zip(select, places.get("select", ()), strict=True))
        wanted = IncludeOptions(named or None, prefix, element.span)
        inclusion = Inclusion(href, places["href"][0], wanted, self._place, self._depth)
        taken = self._include(inclusion, self.faults)
        self._top += taken.top
        return taken.here

    def _union(self, element: Element) -> Union:
        attributes = self._attributes(element)
        return Union(
            children=self._members(element),
            span=element.span,
            name=attributes.text("name"),
            required=attributes.flag("required") or False,
            default=attributes.text("default"),
            places=attributes.places,
        )

    def _collection(self, element: Element) -> Collection:
        attributes = self._attributes(element)
        name = attributes.needed("name")
        whitespace, context = attributes.choice("whitespace", Whitespace), attributes.choice("context", Context)
        separator = attributes.escaped("separator")
        around = self._place.options
        options = around._replace(
            whitespace=whitespace or around.whitespace,
            separator=around.separator if separator is None else separator,
        )
        with self._inside(Place(join_path(self._place.parent, name), self._place.in_turn, options, in_collection=True)):
            children = self._members(element)
        src = attributes.text("src")
        listed = {} if src is None else self._listed(src, dict(attributes.places)["src"][0])
        return Collection(
            name=name,
            children=children,
            span=element.span,
            minimum=attributes.number("min", least=0) or 0,
            maximum=attributes.number("max"),
            src=self._from_home(src),
            context=context or Context.GUARANTEED,
            whitespace=whitespace,
            separator=separator,
            listed=listed,
            places=attributes.places,
        )

    def _listed(self, src: str, span: Span) -> Mapping[str, Member]:
        found = read_members(src, self._folder, span)
        if isinstance(found, list):
            self.faults += found
            return {}
        return found

    def _members(self, element: Element) -> tuple[Module | Doc, ...]:
        """Return the modules of a union or collection; text beside them is a fault."""
        found: list[Module | Doc] = []
        for item in self._items(element):
            if isinstance(item, Module | Doc):
                found.append(item)
            elif not _blank(item):
                message = f"a {element.name} can contain only modules, not text"
                self._fault("PC106", message, item.span, "put the text into a module")
        return tuple(found)

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

    def _rules(self, element: Element) -> RuleList:
        self._attributes(element)
        children: list[Combination | Doc] = []
        for node in element.children:
            if isinstance(node, Characters):
                if not node.blank:
                    self._fault("PC106", "<rules> cannot contain text", node.span, "write rules, or a <doc>")
            elif self._allowed(node, element) and node.name == "doc":
                self._attributes(node)
                children.append(Doc(text=self._content(node), span=node.span))
            elif node.name in RULE_ATTRIBUTES:
                self._hollow(node)
                children.append(read_rule(node, self.faults))
        return RuleList(children=tuple(children), span=element.span)

    def _hollow(self, element: Element) -> None:
        for item in self._items(element):
            if isinstance(item, Text) and not _blank(item):
                fix = f'write it as default="{item.text.strip()}"' if element.name == "parameter" else "remove it"
                self._fault("PC106", f"<{element.name}> cannot contain text", item.span, fix)

    def _content(self, element: Element) -> str:
        return "".join(item.text for item in self._items(element) if isinstance(item, Text))

    def _fault(self, code: str, message: str, span: Span, advice: str | None = None) -> None:
        self.faults.append(diagnostic(code, message, span, advice))


def _blank(item: Item) -> bool:
    return isinstance(item, Text) and not item.exact and is_blank(item.text)
