"""A document becomes several: modules move into files that it includes, texts into files that they are taken from.

Comes in: a document in one piece, and wishes. Goes out: `SchemaFiles`, the piece among them. Only those modules move
that mean the same by themselves, to which all their paths lead. What they inherit, their file says; where it says
something else, the piece says it of each of them. How includes are read is not asked of the language.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from posixpath import dirname, join
from typing import NamedTuple

from lxml import etree

from promptcache.language.syntax.conditions import KEYWORDS, TOKEN
from promptcache.language.syntax.names import absolute, is_name
from promptcache.testing.file_wishes import FileWish
from promptcache.testing.markup import append_text, indent, to_text
from promptcache.testing.written import SchemaFiles

LEFT = "left"
"""The name of what a file holds and nobody includes."""

_PATHS = ("requires", "excludes", "after", "modules", "if", "then", "test")
_SIGNS = frozenset({"(", ")", *KEYWORDS})
_DEFAULTS = {"whitespace": "dedent", "separator": "\\n", "context": "guaranteed"}
_HOLDERS = ("schema", "module", "system", "user", "assistant")


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
    """Children of `parent` that stand beside each other."""

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
        """Move modules that stand beside each other into a file, and include that in their place."""
        runs = [(name, run) for name, root in self._documents.items() for run in _runs(root)]
        if not runs:
            return
        name, run = runs[wish.number % len(runs)]
        items, modules = run.items, _tops(run.items)
        file = etree.Element("schema", {"name": "s"} | self._options(run, wish))
        rules = _rules_about(self._documents[name], modules) if wish.rules and not _path_of(run.parent) else []
        prefix = _prefix(items, wish.prefix)
        _lead_home([*items, *rules], _path_of(run.parent), prefix)
        _cut_names(items, prefix)
        is_deep = wish.deep and not _names_files(items)
        href = self._free_name("part", "xml", deep=is_deep)
        include = _replace(run, file, href)
        _move_rules(rules, file)
        if wish.select and _can_select(items):
            include.set("select", " ".join(str(each.get("name")) for each in items if each.tag in ("module", "union")))
            _add_rest(file, wish.rest, modules[0])
        if prefix:
            include.set("prefix", prefix)
        self._documents[join(dirname(name), href)] = file

    def _options(self, run: _Run, wish: FileWish) -> dict[str, str]:
        """Return what the file says of its modules; in one piece, each of them says what it would not inherit."""
        around = _inherited(run.parent)
        options = {} if _names_files(run.items) else wish.options  # what is included there would not inherit it
        for module in (each for each in _tops(run.items) if each in self._twins):
            for key, value in options.items():
                if value != around[key] and module.get(key) is None:
                    self._twins[module].set(key, value)
        return {key: value for key, value in {**around, **options}.items() if value != _DEFAULTS[key]}

    def _free_name(self, stem: str, suffix: str, *, deep: bool) -> str:
        number = len(self._documents) + len(self._texts)
        name = f"{stem}{number if number > 1 else ''}.{suffix}"
        return f"more/{name}" if deep else name


def _runs(root: etree._Element) -> Iterator[_Run]:
    """Yield what can stand in a file by itself: modules without text between them and without a path that leads out."""
    for parent in root.iter(*_HOLDERS):
        for start in range(len(parent)):
            for stop in range(start + 1, len(parent) + 1):
                last = parent[stop - 1]
                if last.tag not in ("module", "union", "scaffold"):
                    break
                run = _Run(parent, start, stop)
                tops = {_path_of(module) for module in _tops(run.items)}
                if tops and _leads_to(run.items, tops):
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
        for word in (word for attribute in _PATHS for word in TOKEN.findall(each.get(attribute, ""))):
            if word not in _SIGNS:
                yield absolute(word, owner)


def _names_files(items: Iterable[etree._Element]) -> bool:
    return any(each.get("href") or each.get("src") for item in items for each in item.iter("include", "module"))


def _path_of(element: etree._Element | None) -> str:
    if element is None:
        return ""
    modules = [str(each.get("name")) for each in (element, *element.iterancestors()) if each.tag == "module"]
    return "/".join(reversed(modules))


def _inherited(element: etree._Element) -> dict[str, str]:
    """Return the options that hold inside an element."""
    around = [element, *element.iterancestors("module", "schema")]
    return {
        name: next((str(each.get(name)) for each in around if each.get(name) is not None), default)
        for name, default in _DEFAULTS.items()
    }


def _rules_about(root: etree._Element, modules: Iterable[etree._Element]) -> list[etree._Element]:
    """Return the rules of a document that speak of nothing but these modules and what is in them."""
    tops = {_path_of(module) for module in modules}
    return [rule for rule in root.iterfind("rules/*") if _leads_to([rule], tops)]


def _prefix(items: Sequence[etree._Element], size: int) -> str:
    """Return the beginning of this number, counted round, that all names have and can do without; 0 is none."""
    if any(item.tag == "union" and item.get("name") for item in items):
        return ""
    names = [str(module.get("name")) for module in _tops(items)]
    starts = (names[0][:stop] for stop in range(1, len(names[0])))
    fitting = [
        start
        for start in starts
        if is_name(start) and all(name.startswith(start) and is_name(name[len(start) :]) for name in names)
    ]
    return ("", *fitting)[size % (len(fitting) + 1)]


def _lead_home(items: Iterable[etree._Element], path: str, prefix: str) -> None:
    """Make all paths start in a file that holds what was in the module at `path`, without the prefix."""

    def led(at_top: bool, match: re.Match[str]) -> str:
        word = match[0]
        if word.startswith("/"):
            inside = word[1:].removeprefix(f"{path}/" if path else "")
            return f"/{inside.removeprefix(prefix)}"
        return word.removeprefix(prefix) if at_top and word not in _SIGNS else word

    for each in (each for item in items for each in item.iter(etree.Element)):
        at_top = _path_of(each.getparent()) == path
        for attribute in set(_PATHS) & set(each.attrib):
            words = str(each.get(attribute))
            each.set(attribute, TOKEN.sub(partial(led, at_top), words))


def _cut_names(items: Sequence[etree._Element], prefix: str) -> None:
    for module in _tops(items):
        module.set("name", str(module.get("name")).removeprefix(prefix))
    for item in items:
        if item.get("default") is not None:
            item.set("default", str(item.get("default")).removeprefix(prefix))


def _replace(run: _Run, file: etree._Element, href: str) -> etree._Element:
    """Move a run into a file, and return the include that stands in its place."""
    include = etree.Element("include", href=href)
    items = run.items
    include.tail, items[-1].tail = items[-1].tail, None
    run.parent.insert(run.start, include)
    file.extend(items)
    return include


def _move_rules(rules: Sequence[etree._Element], file: etree._Element) -> None:
    if not rules:
        return
    old = rules[0].getparent()
    etree.SubElement(file, "rules").extend(rules)
    if old is not None and not len(old):
        old.getparent().remove(old)  # type: ignore[union-attr] # it stood in the document


def _can_select(items: Sequence[etree._Element]) -> bool:
    """Whether everything can be named, which unions need not be, and nothing is called like what stays behind."""
    named = all(item.get("name") for item in items if item.tag == "union")
    return named and LEFT not in {module.get("name") for module in _tops(items)}


def _add_rest(file: etree._Element, rest: Sequence[str], top: etree._Element) -> None:
    """Write what stays behind, and what a file says about that."""
    name = str(top.get("name"))
    if not {"module", "excludes", "rule"}.isdisjoint(rest):
        etree.SubElement(file, "module", name=LEFT).text = LEFT
    for kind in rest:
        match kind:
            case "text":
                append_text(file, LEFT)
            case "slot":
                etree.SubElement(file, "parameter", name=LEFT, length="1")
            case "turn":
                etree.SubElement(file, "user").text = LEFT
            case "doc":
                etree.SubElement(file, "doc").text = LEFT
            case "excludes":
                top.set("excludes", f"{top.get('excludes', '')} {LEFT}".strip())
            case "rule":
                rules = etree.SubElement(file, "rules")
                etree.SubElement(rules, "exclude", modules=f"{name} {LEFT}")
