"""One schema document becomes several: modules move into included files, texts into files that `src` names.

Only modules move whose paths lead to modules that move with them, so that each file is a schema of its own. The reading
of includes is not asked of the language.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from posixpath import dirname, join
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from lxml import etree

from promptcache.language import CheckedSchema, check_schema, parse_schema
from promptcache.language.syntax.nodes import SchemaDocument
from promptcache.testing.prompt_xml import to_text
from tests.strategies.drafts import Elements, attribute_choices, attribute_values

_PATHS = ("requires", "excludes", "after", "modules", "if", "then", "test")
_OPTIONS = ("whitespace", "separator", "context")
_WORD = re.compile(r"[()]|[^()\s]+")
_SIGNS = frozenset({"(", ")", "and", "or", "not", "implies"})
_HOLDERS = ("schema", "module", "system", "user", "assistant")

# Whitespace beside inline elements is part of the text around them; whitespace inside opaque ones is kept.
_INLINE = frozenset({"parameter", "text"})
_OPAQUE = frozenset({"parameter", "text", "doc", "arg"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFiles:
    """A schema as it is written."""

    xml: str
    files: Mapping[str, str]  # what it includes, and the texts that it takes by `src`, by their paths
    whole: str  # the same schema in one document

    @property
    def folder(self) -> Mapping[str, str] | None:
        """The files, as `parse_schema` takes them; None if the schema has none."""
        return self.files or None

    def checked(self) -> CheckedSchema:
        """Read and check the schema."""
        return check_schema(parse_schema(self.xml, folder=self.folder))

    @property
    def report(self) -> str:
        """The document and its files, to be shown."""
        return "\n".join((f"schema: {self.xml}", *(f"file {name}: {text}" for name, text in self.files.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWish:
    """A wish for a file of its own; it is granted if anything fits."""

    of_text: bool  # the text of a module moves, by `src`, and not neighbouring modules, by `include`
    number: int  # which of the possible places, counted round
    deep: bool  # whether the file lies in a folder below
    options: Mapping[str, str]  # what the file says of the whitespace, separator and context of its modules
    rules: bool  # whether the rules that speak of nothing else come along


def file_wishes(elements: Elements) -> SearchStrategy[list[FileWish]]:
    """Draw no file, mostly, or one or two."""
    none: SearchStrategy[list[FileWish]] = st.just([])
    if not elements.includes:
        return none
    values = attribute_values(SchemaDocument, elements)
    wish = st.builds(
        FileWish,
        of_text=st.sampled_from((False, False, True)),
        number=st.integers(0, 99),
        deep=st.booleans(),
        options=attribute_choices({name: values[name] for name in _OPTIONS}),
        rules=st.booleans(),
    )
    options = (none, none, st.lists(wish, min_size=1, max_size=2))
    return st.integers(0, 2).flatmap(options.__getitem__)


def indent(element: etree._Element, line: str = "\n") -> None:
    """Write blocks on lines of their own where they have no text beside them."""
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


def divide(root: etree._Element, wishes: Sequence[FileWish], *, indented: bool) -> SchemaFiles:
    """Return what the document becomes when each wish is granted that can be; `indented` is how all is written."""
    division = _Division(root)
    for wish in wishes:
        if wish.of_text:
            division.move_text(wish)
        else:
            division.move_modules(wish)
    return division.written(indented=indented)


class _Run(NamedTuple):
    """Children of `parent` that are neighbours."""

    parent: etree._Element
    start: int
    stop: int

    @property
    def items(self) -> list[etree._Element]:
        """The children."""
        return self.parent[self.start : self.stop]


class _Division:
    """The documents that there are by now, by their paths, the first one's being "", and the same in one piece."""

    def __init__(self, root: etree._Element) -> None:
        self._whole = deepcopy(root)
        self._twins = dict(zip(root.iter("module"), self._whole.iter("module"), strict=True))
        self._documents = {"": root}
        self._texts: dict[str, str] = {}

    def written(self, *, indented: bool) -> SchemaFiles:
        """Return the documents as text."""
        if indented:
            for root in (self._whole, *self._documents.values()):
                indent(root)
        written = {name: to_text(root) for name, root in self._documents.items()}
        return SchemaFiles(xml=written.pop(""), files=written | self._texts, whole=to_text(self._whole))

    def move_text(self, wish: FileWish) -> None:
        """Move the text of a module that holds nothing else into a file; there, text is exact."""
        leaves = [
            (name, module)
            for name, root in self._documents.items()
            for module in root.iter("module")
            if module in self._twins and not len(module) and module.get("src") is None
        ]
        if not leaves:
            return
        ended = [leaf for leaf in leaves if (leaf[1].text or "").endswith("\n")]  # as most files are
        name, module = (ended or leaves)[wish.number % len(ended or leaves)]
        text, module.text = module.text or "", None
        if text:
            twin = self._twins[module]
            twin.text = None
            etree.SubElement(twin, "text").text = text
        href = self._free_name("text", "txt", deep=wish.deep)
        module.set("src", href)
        # one byte order mark is not part of the text of a file
        self._texts[join(dirname(name), href)] = f"\ufeff{text}" if text.startswith("\ufeff") else text

    def move_modules(self, wish: FileWish) -> None:
        """Move neighbouring modules into a file, and include that in their place."""
        runs = [(name, run) for name, root in self._documents.items() for run in _runs(root)]
        if not runs:
            return
        name, run = runs[wish.number % len(runs)]
        items, modules = run.items, _tops(run.items)
        options = dict(wish.options)
        for module in modules:
            for key, value in ({"whitespace": "dedent"} | options).items():
                if key not in module.attrib:
                    self._twins[module].set(key, value)
        file = etree.Element("schema", {"name": "s"} | options)
        tops = {_path_of(module) for module in modules}
        rules = [rule for rule in self._documents[name].iterfind("rules/*") if _leads_to([rule], tops)]
        names_files = any(
            each.get("href") or each.get("src") for item in items for each in item.iter("include", "module")
        )
        href = self._free_name("part", "xml", deep=wish.deep and not names_files)
        include = etree.Element("include", href=href)
        include.tail, items[-1].tail = items[-1].tail, None
        run.parent.insert(run.start, include)
        file.extend(items)
        if rules and wish.rules and not _path_of(run.parent):
            old = rules[0].getparent()
            etree.SubElement(file, "rules").extend(rules)
            if not len(old):
                old.getparent().remove(old)
        self._documents[join(dirname(name), href)] = file

    def _free_name(self, stem: str, suffix: str, *, deep: bool) -> str:
        number = len(self._documents) + len(self._texts)
        name = f"{stem}{number if number > 1 else ''}.{suffix}"
        return f"more/{name}" if deep else name


def _runs(root: etree._Element) -> Iterator[_Run]:
    """Yield runs that can be moved into a file: modules without text between them and without a path that leads out."""
    for parent in root.iter(*_HOLDERS):
        for start in range(len(parent)):
            for stop in range(start + 1, len(parent) + 1):
                last = parent[stop - 1]
                if last.tag not in ("module", "union", "scaffold"):
                    break
                run = _Run(parent, start, stop)
                tops = {_path_of(module) for module in _tops(run.items)}
                paths = (
                    each.get(name, "") for item in run.items for each in item.iter(etree.Element) for name in _PATHS
                )
                is_movable = not _path_of(parent) or not any(path.startswith("/") or " /" in path for path in paths)
                if tops and is_movable and _leads_to(run.items, tops):
                    yield run
                if (last.tail or "").strip(" \t\n"):
                    break


def _tops(items: Iterable[etree._Element]) -> list[etree._Element]:
    """Return the modules among items, members of unions included."""
    return [
        module
        for item in items
        for module in (item.iterchildren("module") if item.tag == "union" else [item])
        if module.tag == "module"
    ]


def _leads_to(items: Iterable[etree._Element], tops: set[str]) -> bool:
    """Whether every path in items leads to one of these modules, or into it."""
    return all(any(f"{path}/".startswith(f"{top}/") for top in tops) for item in items for path in _targets(item))


def _targets(item: etree._Element) -> Iterator[str]:
    for each in item.iter(etree.Element):
        owner = _path_of(each.getparent())
        for word in (word for attribute in _PATHS for word in _WORD.findall(each.get(attribute, ""))):
            if word not in _SIGNS:
                yield word[1:] if word.startswith("/") else f"{owner}/{word}".removeprefix("/")


def _path_of(element: etree._Element | None) -> str:
    if element is None:
        return ""
    modules = [str(each.get("name")) for each in (element, *element.iterancestors()) if each.tag == "module"]
    return "/".join(reversed(modules))
