"""Read the elements of a schema document into items, with a diagnostic for every fault of structure.

The elements of an included file take the place of the `include`. `check_schema` checks names, paths and rules later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from promptcache.diagnostics import Diagnostic, FaultList, SchemaError, Span, did_you_mean, in_order
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
from promptcache.language.syntax.include import IncludedFile, Includes, included_at, too_much
from promptcache.language.syntax.member_files import read_members
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
)
from promptcache.language.syntax.source import diagnostic
from promptcache.language.syntax.synonyms import AS_TEXT, HTML, meant
from promptcache.language.syntax.whitespace import is_blank
from promptcache.language.syntax.xml import MAX_DEPTH, Attribute, Characters, Element

MAX_PATHS = 50_000
"""Maximum number of paths and words of conditions in the attributes of a document."""


_TURNS = frozenset(Role)
_OF_THE_FILE = frozenset({"doc", "example", "answer"})
"""Elements of an included file that describe the file itself; an `include` leaves them out."""

_INHERITED = ("whitespace", "separator", "context")
_INHERITED_BY = {"module": _INHERITED, "collection": ("whitespace", "separator"), "member": ("whitespace",)}
"""Attributes of `schema` that modules, collections, and members of collections inherit."""


class SchemaReader:
    """Reader that converts elements into items and collects diagnostics in `faults`."""

    def __init__(self, folder: Folder | None, includes: Includes) -> None:
        self.faults = FaultList(SchemaError)
        self._folder = folder
        self._includes = includes
        self._included_at: dict[tuple[object, ...], Span] = {}
        self._path: list[str] = []
        self._include: Span | None = None
        self._depth = self._num_paths = 0
        self._top: list[Item] = []

    def schema(self, root: Element) -> SchemaDocument:
        """Read a schema document.

        Raises:
            SchemaError: All faults of the document and of the files that it includes, or a limit that is exceeded.
        """
        if not self._is_schema(root):
            raise SchemaError(self.faults)
        attributes = self._attributes(root)
        separator = attributes.escaped("separator")
        document = SchemaDocument(
            name=attributes.needed("name"),
            children=(*self._items(root), *self._top),
            span=root.span,
            version=attributes.text("version"),
            context=attributes.choice("context", Context) or Context.PREVIOUS,
            whitespace=attributes.choice("whitespace", Whitespace) or Whitespace.DEDENT,
            separator="\n" if separator is None else separator,
            repair=attributes.repair("repair"),
            positions=attributes.choice("positions", Placement),
            places=attributes.places,
        )
        if self.faults:  # a file that is included twice has its faults once
            raise SchemaError(in_order({(each.code, each.span, each.message): each for each in self.faults}.values()))
        return document

    def _is_schema(self, root: Element) -> bool:
        if root.name == "schema":
            return True
        advice = (
            "this document is a prompt, but a schema is expected here"
            if root.name == "prompt"
            else did_you_mean(root.name, ["schema"])
        )
        self._fault("PC107", f"a schema document begins with <schema>, not <{root.name}>", root.name_span, advice)
        return False

    def _attributes(self, element: Element) -> AttributeReader:
        return AttributeReader(element, ATTRIBUTES[element.name], self.faults)

    def _items(self, parent: Element) -> tuple[Item, ...]:
        items: list[Item] = []
        with self._deeper():
            for node in parent.children:
                if isinstance(node, Characters):
                    items.append(Text(text=node.text, span=node.span))
                elif not self._allowed(node, parent):
                    continue
                elif node.name == "include":
                    items += self._included(node, parent, {})
                else:
                    items.append(self._item(node))
        return tuple(items)

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        self._depth += 1
        if self._depth > MAX_DEPTH and self._include is not None:
            raise too_much(f"with this include, elements are nested more than {MAX_DEPTH} deep", self._include)
        yield
        self._depth -= 1

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
                return Turn(role=Role(role), children=self._items(element), span=element.span)

    def _module(self, element: Element) -> Module:
        attributes = self._attributes(element)
        name, src = attributes.needed("name"), attributes.text("src")
        whitespace = attributes.choice("whitespace", Whitespace)
        separator = attributes.escaped("separator")
        context = attributes.choice("context", Context)
        self._path.append(name)
        children = self._items(element)
        self._path.pop()
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

    def _included(self, element: Element, parent: Element, given: Mapping[str, Attribute]) -> list[Item]:
        """Return the items of an included file. `given` are the attributes of the files around it."""
        attributes = self._attributes(element)
        self._hollow(element)
        before = len(self.faults)
        href = attributes.needed("href")
        if len(self.faults) > before:
            return []
        found = self._includes.open(href, dict(attributes.places)["href"][0], self._folder, element.span)
        items: list[Item] = []
        if isinstance(found, list):
            self.faults += found
        elif not self._is_repeated(found, href, element.span) and self._is_schema(found.root):
            around = self._folder, self._include
            self._folder, self._include = found.folder, element.span
            with self._includes.inside(found.path):
                items = self._content_of(found.root, parent, given)
            self._folder, self._include = around
        self.faults[before:] = [included_at(fault, element.span) for fault in self.faults[before:]]
        return items

    def _is_repeated(self, file: IncludedFile, href: str, span: Span) -> bool:
        """Report a file that is included twice in one module, so that all its names would be defined twice."""
        first = self._included_at.setdefault((file.path, *self._path), span)
        if first is span:
            return False
        message = f"{href} is included twice in the same place, which defines its names twice"
        fix = "remove one of the includes, or put each of them into a module of its own"
        self.faults.append(diagnostic("PC203", message, span, fix, ((first, "first included here"),)))
        return True

    def _content_of(self, root: Element, parent: Element, given: Mapping[str, Attribute]) -> list[Item]:
        """Return the modules, unions, collections, scaffolds and rules of an included file.

        Rules and scaffolds of a file that is included in a turn move to the top level of the schema.
        """
        attributes = self._attributes(root)
        attributes.needed("name")
        given = {**given, **{each.name: each for each in root.attributes if each.name in _INHERITED}}
        in_top_turn = parent.name in _TURNS and not self._path
        items: list[Item] = []
        for node in root.children:
            if isinstance(node, Characters):
                if not node.blank:
                    self._outside_modules("text", node.span)
            elif node.name in _OF_THE_FILE:
                self._item(node)  # for its faults
            elif node.name in {"text", "parameter"} or node.name in _TURNS:
                what = {"text": "text", "parameter": "a parameter"}.get(node.name, f"a turn of <{node.name}>")
                self._outside_modules(what, node.span)
            elif not self._allowed(node, root if in_top_turn and node.name in {"rules", "scaffold"} else parent):
                continue
            elif node.name == "include":
                items += self._included(node, parent, given)
            elif in_top_turn and node.name in {"rules", "scaffold"}:
                self._top.append(self._item(node))
            else:
                items.append(self._item(_heir(node, parent, given)))
        return items

    def _outside_modules(self, what: str, span: Span) -> None:
        message = f"the included file has {what} outside of its modules"
        self._fault("PC219", message, span, "put it into a module, or write it in the file with the include")

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
        self._path.append(name)
        children = self._members(element)
        self._path.pop()
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


def _heir(element: Element, parent: Element, given: Mapping[str, Attribute]) -> Element:
    """Return an element of an included file with the attributes that it inherits from the root of that file."""
    if element.name == "union":
        members = (_heir(each, element, given) if isinstance(each, Element) else each for each in element.children)
        return element._replace(children=tuple(members))
    names = _INHERITED_BY.get("member" if parent.name == "collection" else element.name, ())
    own = {each.name for each in element.attributes}
    more = (given[name] for name in names if name in given and name not in own)
    return element._replace(attributes=(*element.attributes, *more))
