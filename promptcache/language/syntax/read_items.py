"""Read a schema document and the files that it includes into items, with a diagnostic for every fault of structure.

The elements of an included file take the place of the `include`. `check_schema` checks names, paths and rules later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from promptcache.diagnostics import Diagnostic, FaultList, SchemaError, Span, diagnostic, in_order
from promptcache.language.limits import MAX_BYTES, MAX_DEPTH, MAX_ELEMENTS
from promptcache.language.syntax import nodes
from promptcache.language.syntax.attributes import attributes_of
from promptcache.language.syntax.elements import ELEMENTS, RULES, instead
from promptcache.language.syntax.files import Folder, find_file, is_template, open_document, read_src
from promptcache.language.syntax.member_files import read_members
from promptcache.language.syntax.names import AS_TEXT, HTML, meant
from promptcache.language.syntax.nodes import place
from promptcache.language.syntax.read_attributes import missing, num_words, read_attributes, wrong_root
from promptcache.language.syntax.source import Source
from promptcache.language.syntax.values import read_answer
from promptcache.language.syntax.whitespace import is_blank
from promptcache.language.syntax.xml import Attribute, Characters, Element, parse_xml

_TURNS = frozenset(nodes.Role)
_OF_THE_FILE = frozenset({"doc", "example", "answer"})
"""Elements of an included file that describe the file itself; an `include` leaves them out."""


class SchemaReader:
    """Reader of one schema document and of all files that it includes; each file is read once.

    Attributes:
        faults: Diagnostics of all files.
        chain: Files that are being read, outermost first. A file cannot include itself.
        rendered: Whether any of the files is a template.
    """

    def __init__(self, folder: Folder | None, context: Mapping[str, object] | None) -> None:
        self.faults = FaultList(SchemaError)
        self.chain: list[Path] = []
        self.rendered = False
        self._folder, self._context = folder, context
        self._roots: dict[Path, Element | None] = {}
        self._included_at: dict[tuple[object, ...], Span] = {}
        self._path: list[str] = []
        self._include: Span | None = None
        self._depth = self._num_paths = self._num_items = self._num_characters = 0
        self._top: list[nodes.Item] = []

    def source(self, data: bytes, name: str) -> Source:
        """Return the text of a file; templates are rendered."""
        self.rendered |= is_template(name)
        return open_document(data, name, self._context, SchemaError)

    def schema(self, source: Source) -> dict[str, Any]:
        """Return the fields of the schema of a document.

        Raises:
            SchemaError: All faults of the document and of the files that it includes, or a limit that is exceeded.
        """
        root = parse_xml(source, source.name, SchemaError)
        if root.name != "schema":
            raise SchemaError([wrong_root(root, "schema")])
        fields, items = self._fields(root), self._items(root)
        if self.faults:  # a file that is included twice has its faults once
            raise SchemaError(in_order({(each.code, each.span, each.message): each for each in self.faults}.values()))
        return {**fields, "children": (*items, *self._top)}

    def _fields(self, element: Element) -> dict[str, Any]:
        return read_attributes(element, ELEMENTS[element.name].node, self.faults)

    def _items(self, parent: Element) -> tuple[nodes.Item, ...]:
        items: list[nodes.Item] = []
        self._depth += 1
        if self._depth > MAX_DEPTH and self._include is not None:
            raise _too_much(f"with this include, elements are nested more than {MAX_DEPTH} deep", self._include)
        for node in parent.children:
            if isinstance(node, Characters):
                items.append(nodes.Text(text=node.text, span=node.span))
            elif not self._allowed(node, parent):
                continue
            elif node.name == "include":
                items += self._included(node, parent, {})
            else:
                items.append(self._item(node))
        self._depth -= 1
        return tuple(items)

    def _allowed(self, element: Element, parent: Element) -> bool:
        known, here = ELEMENTS.get(element.name), ELEMENTS[parent.name].children
        if known is not None:
            self._num_paths += num_words(element, known.node)
        if self._num_paths > MAX_ELEMENTS:
            message = f"the rules of this document name more than {MAX_ELEMENTS} modules"
            raise SchemaError([diagnostic("PC308", message, element.name_span)])
        if element.name in here:
            return True
        if known is not None:
            message = f"<{element.name}> is not allowed inside <{parent.name}>"
            self.faults.add("PC102", message, element.name_span, instead(element.name, parent.name))
        else:
            advice = meant(element.name, sorted(here), "<{}>") or meant(element.name, ELEMENTS, "<{}>")
            advice = AS_TEXT if element.name in HTML else advice
            role = next((each.value for each in element.attributes if each.name == "role"), "")
            if role in _TURNS:
                advice = f"a turn is written as <{role}>"
            elif element.name in {each.name for each in attributes_of(ELEMENTS[parent.name].node)}:
                advice = f'write it as an attribute of <{parent.name}>, {element.name}="…"'
            elif element.name == "prompt":
                advice = instead("prompt", parent.name)
            advice = advice or f"<{parent.name}> can contain: {', '.join(sorted(here)) or 'text'}"
            self.faults.add("PC101", f"there is no element <{element.name}>", element.name_span, advice)
        return False

    def _item(self, element: Element) -> nodes.Item:
        match element.name:
            case "module":
                return self._module(element)
            case "collection":
                return self._collection(element)
            case "union":
                return nodes.Union(**self._fields(element), children=self._members(element))
            case "example":
                return self._example(element)
            case "rules":
                return self._rules(element)
            case "text":
                return nodes.Text(**self._fields(element), text=self._content(element), exact=True)
            case "doc":
                return nodes.Doc(**self._fields(element), text=self._content(element))
            case "answer":
                self._hollow(element)
                return read_answer(element, self._folder, "schema", self.faults)
            case "parameter" | "scaffold":
                self._hollow(element)
                item: nodes.Item = ELEMENTS[element.name].node(**self._fields(element))
                return item
            case role:
                return nodes.Turn(**self._fields(element), role=nodes.Role(role), children=self._items(element))

    def _module(self, element: Element) -> nodes.Module:
        fields = self._fields(element)
        self._path.append(fields["name"])
        children = self._items(element)
        self._path.pop()
        if (src := fields.get("src")) is not None:
            content = (child for child in children if not isinstance(child, nodes.Doc) and not _blank(child))
            if extra := next(content, None):
                message = "a module with src cannot have other content"
                self.faults.add("PC109", message, extra.span, "move this content to a separate module")
            span = dict(fields["places"])["src"][0]
            text = read_src(src, self._folder, span)
            if isinstance(text, Diagnostic):
                self.faults.append(text)
            else:
                children += (nodes.Text(text=text, span=span, exact=True),)
            fields["src"] = src if self._folder is None else self._folder.from_home(src)
        return nodes.Module(**fields, children=children)

    def _collection(self, element: Element) -> nodes.Collection:
        fields = self._fields(element)
        self._path.append(fields["name"])
        children = self._members(element)
        self._path.pop()
        if (src := fields.get("src")) is not None:
            listed = read_members(src, self._folder, dict(fields["places"])["src"][0])
            if isinstance(listed, list):
                self.faults += listed
            else:
                fields["listed"] = listed
            fields["src"] = src if self._folder is None else self._folder.from_home(src)
        return nodes.Collection(**fields, children=children)

    def _members(self, element: Element) -> tuple[nodes.Module | nodes.Doc, ...]:
        """Return the modules of a union or collection; text beside them is a fault."""
        found: list[nodes.Module | nodes.Doc] = []
        for item in self._items(element):
            if isinstance(item, nodes.Module | nodes.Doc):
                found.append(item)
            elif not _blank(item):
                message = f"a {element.name} can contain only modules, not text"
                self.faults.add("PC106", message, item.span, "put the text into a module")
        return tuple(found)

    def _rules(self, element: Element) -> nodes.RuleList:
        children: list[nodes.Combination | nodes.Doc] = []
        for node in element.children:
            if isinstance(node, Characters):
                if not node.blank:
                    self.faults.add("PC106", "<rules> cannot contain text", node.span, "write rules, or a <doc>")
            elif self._allowed(node, element) and node.name == "doc":
                children.append(nodes.Doc(**self._fields(node), text=self._content(node)))
            elif node.name in RULES:
                self._hollow(node)
                rule: nodes.Combination = RULES[node.name].node(**self._fields(node))
                if isinstance(rule, nodes.Choose) and {"min", "max"}.isdisjoint(dict(rule.places)):
                    self.faults.append(missing(node, "min", "one of the attributes min, max"))
                children.append(rule)
        return nodes.RuleList(**self._fields(element), children=tuple(children))

    def _example(self, element: Element) -> nodes.Example | nodes.Doc:
        """Read an example. One without a prompt is a fault and becomes a `Doc`."""
        fields = self._fields(element)
        prompts = [node for node in element.children if isinstance(node, Element) and node.name == "prompt"]
        for node in element.children:
            if isinstance(node, Element) and node not in prompts[:1]:
                message, advice = f"<{node.name}> is not allowed inside <example>", "write one <prompt> in each example"
                self.faults.add("PC102", message, node.name_span, advice)
            elif isinstance(node, Characters) and not node.blank:
                self.faults.add("PC106", "<example> cannot contain text", node.span, "move the text into the <prompt>")
        if not prompts:
            self.faults.add("PC104", "<example> needs a prompt", element.name_span, 'add <prompt schema="…">')
            return nodes.Doc(text="", span=element.span)
        prompt = prompts[0]
        text = prompt.source.text[prompt.start : prompt.end]
        return nodes.Example(**fields, prompt=text, prompt_span=prompt.span)

    def _hollow(self, element: Element) -> None:
        for item in self._items(element):
            if isinstance(item, nodes.Text) and not _blank(item):
                fix = f'write it as default="{item.text.strip()}"' if element.name == "parameter" else "remove it"
                self.faults.add("PC106", f"<{element.name}> cannot contain text", item.span, fix)

    def _content(self, element: Element) -> str:
        return "".join(item.text for item in self._items(element) if isinstance(item, nodes.Text))

    def _included(self, element: Element, parent: Element, given: Mapping[str, Attribute]) -> list[nodes.Item]:
        """Return the items of an included file. `given` are the attributes of the files around it."""
        self._hollow(element)
        before = len(self.faults)
        include = nodes.Include(**self._fields(element))
        if len(self.faults) > before:
            return []
        path = find_file("href", include.href, self._folder, place(include, "href"))
        items: list[nodes.Item] = []
        if isinstance(path, Diagnostic):
            self.faults.append(path)
        elif (root := self._root(path, include)) and not self._is_repeated(path, include):
            if root.name != "schema":
                self.faults.append(wrong_root(root, "schema"))
            else:
                assert self._folder is not None, "a file was found in it"
                around = self._folder, self._include
                self._folder, self._include = self._folder.beside(path), include.span
                self.chain.append(path)
                items = self._content_of(root, parent, given)
                self.chain.pop()
                self._folder, self._include = around
        self.faults[before:] = [
            fault
            if fault.span.source == include.span.source
            else replace(fault, related=(*fault.related, (include.span, "included here")))
            for fault in self.faults[before:]
        ]
        return items

    def _root(self, path: Path, include: nodes.Include) -> Element | None:
        """Return the root of an included file within the limits of all of them, or None if it has faults.

        Raises:
            SchemaError: The includes exceed a limit.
        """
        folder = self._folder
        assert folder is not None, "a file was found in it"
        if path in self.chain:
            circle = [*self.chain[self.chain.index(path) :], path]
            names = " includes ".join(each.relative_to(folder.home).as_posix() for each in circle)
            message, fix = f"files include each other in a cycle: {names}", "move the shared modules into a third file"
            self.faults.add("PC217", message, place(include, "href"), fix)
            return None
        if len(self.chain) >= MAX_DEPTH:
            raise _too_much(f"includes are nested more than {MAX_DEPTH} deep", include.span)
        if path not in self._roots:
            self._roots[path] = None
            try:
                source = self.source(folder.document(path), folder.name(path))
                self._roots[path] = parse_xml(source, source.name, SchemaError)
            except SchemaError as error:
                self.faults += error.diagnostics
        if (root := self._roots[path]) is not None:
            self._num_items += _num_items(root)
            self._num_characters += len(root.source.text)
            if self._num_items > MAX_ELEMENTS:
                raise _too_much(f"includes add more than {MAX_ELEMENTS} items to this schema", include.span)
            if self._num_characters > MAX_BYTES:
                raise _too_much(f"includes add more than {MAX_BYTES} characters to this schema", include.span)
        return root

    def _is_repeated(self, path: Path, include: nodes.Include) -> bool:
        """Report a file that is included twice in one module, so that all its names would be defined twice."""
        first = self._included_at.setdefault((path, *self._path), include.span)
        if first is include.span:
            return False
        message = f"{include.href} is included twice in the same place, which defines its names twice"
        fix = "remove one of the includes, or put each of them into a module of its own"
        self.faults.add("PC203", message, include.span, fix, ((first, "first included here"),))
        return True

    def _content_of(self, root: Element, parent: Element, given: Mapping[str, Attribute]) -> list[nodes.Item]:
        """Return the modules, unions, collections, scaffolds and rules of an included file.

        Rules and scaffolds of a file that is included in a turn move to the top level of the schema. `whitespace` says
        how a file is written, so each file has its own default.
        """
        self._fields(root)  # for its faults
        dedent = Attribute("whitespace", nodes.Whitespace.DEDENT, root.source, root.start, root.start, root.start)
        given = {**given, "whitespace": dedent, **{each.name: each for each in root.attributes}}
        in_top_turn = parent.name in _TURNS and not self._path
        items: list[nodes.Item] = []
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
        self.faults.add("PC219", message, span, "put it into a module, or write it in the file with the include")


def _blank(item: nodes.Item) -> bool:
    return isinstance(item, nodes.Text) and not item.exact and is_blank(item.text)


def _heir(element: Element, parent: Element, given: Mapping[str, Attribute]) -> Element:
    """Return an element of an included file with the attributes that it inherits from the root of that file."""
    if element.name == "union":
        members = (_heir(each, element, given) if isinstance(each, Element) else each for each in element.children)
        return element._replace(children=tuple(members))
    if element.name not in ELEMENTS:
        return element
    names = [
        each.name
        for each in attributes_of(ELEMENTS[element.name].node)
        if each.inherited and (parent.name != "collection" or each.of_members)
    ]
    own = {each.name for each in element.attributes}
    more = (given[name] for name in names if name in given and name not in own)
    return element._replace(attributes=(*element.attributes, *more))


def _num_items(element: Element) -> int:
    return 1 + sum(_num_items(child) if isinstance(child, Element) else 1 for child in element.children)


def _too_much(message: str, span: Span) -> SchemaError:
    return SchemaError([diagnostic("PC221", message, span, "include fewer or smaller files")])
