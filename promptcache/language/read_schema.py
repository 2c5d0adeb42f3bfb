"""Read a schema document and all documents that it includes.

An included file is a schema of its own. Its names and paths are checked before its items get their names in the
enclosing schema. Each file is read once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from promptcache.diagnostics import PATH, Diagnostic, InvalidValue, SchemaError, Span, in_order
from promptcache.language.rules.compile import compile_rules, scaffold_members
from promptcache.language.syntax.files import Files, Folder, find_file, is_template, open_document
from promptcache.language.syntax.include import IncludedItems, include_items
from promptcache.language.syntax.index import index_schema
from promptcache.language.syntax.nodes import Item, Module, SchemaDocument, Text, Turn, Union
from promptcache.language.syntax.read_items import Inclusion, SchemaReader
from promptcache.language.syntax.source import MAX_BYTES, Source, decode, diagnostic, read_document
from promptcache.language.syntax.xml import MAX_DEPTH, MAX_ELEMENTS, parse_xml

MAX_INCLUDES = 20
"""Maximum depth of nested includes."""


class Read(NamedTuple):
    """Document, and whether the document or one of its includes is a template."""

    document: SchemaDocument
    rendered: bool


def read_schema(text: str | bytes, *, source: str, folder: Files | None, context: Mapping[str, object] | None) -> Read:
    """Read a schema document from text; `folder` contains the files that the document names.

    Raises:
        SchemaError: all faults of XML or structure, by file and place.
    """
    reading = _Reading(context)
    document = reading.whole(decode(text, source, SchemaError), None if folder is None else Folder.of(folder))
    return Read(document, reading.rendered)


def read_schema_file(path: str | Path, context: Mapping[str, object] | None) -> Read:
    """Read a schema file, or a template of one.

    Raises:
        SchemaError: as `read_schema`, or the file cannot be read.
    """
    PATH.check("path", path, InvalidValue)
    reading, where = _Reading(context), Path(path)
    source = reading.open(read_document(where, SchemaError), str(path))
    reading.chain.append(where.resolve())
    document = reading.whole(source, Folder.of(where.parent))
    return Read(document, reading.rendered)


class _Size(NamedTuple):
    """Size of a part of a schema; `depth` counts nested elements."""

    items: int = 0
    characters: int = 0
    depth: int = 0


class _Reading:
    """State of reading one document and all its includes."""

    def __init__(self, context: Mapping[str, object] | None) -> None:
        self.chain: list[Path] = []
        self._context = context
        self.rendered = self._full = False
        self._known: dict[Path, SchemaDocument | None] = {}
        self._items = self._characters = self._bytes = 0
        self._depth = 0

    def open(self, data: bytes, name: str) -> Source:
        """Return the text of a file; templates are rendered."""
        self.rendered |= is_template(name)
        self._bytes += len(data)
        return open_document(data, name, self._context, SchemaError)

    def whole(self, source: Source, folder: Folder | None) -> SchemaDocument:
        """Read one document.

        Raises:
            SchemaError: all faults of the document and of the files that it includes.
        """
        root = parse_xml(source, source.name, SchemaError)

        def include(inclusion: Inclusion, faults: list[Diagnostic]) -> IncludedItems:
            return self._include(inclusion, folder, faults)

        reader = SchemaReader(folder, include)
        document = reader.schema(root)
        if reader.faults:
            raise SchemaError(in_order(reader.faults))
        return document

    def _include(self, inclusion: Inclusion, folder: Folder | None, faults: list[Diagnostic]) -> IncludedItems:
        path = find_file("href", inclusion.href, folder, inclusion.href_span)
        if isinstance(path, Diagnostic):
            faults.append(path)
            return IncludedItems((), ())
        assert folder is not None, "a file was found in it"
        if path in self.chain:
            faults.append(_circle([*self.chain[self.chain.index(path) :], path], folder, inclusion.href_span))
            return IncludedItems((), ())
        self._depth += inclusion.depth
        try:
            document = self._document(path, folder.beside(path), inclusion)
            if document is None:
                return IncludedItems((), ())
            taken = include_items(document, inclusion.wanted, inclusion.place, faults)
            self._spend(len(document.children), taken, inclusion)
            return taken
        except SchemaError as error:
            faults += (_from(fault, inclusion.wanted.span) for fault in error.diagnostics)
            if self._full:  # nothing more is read
                raise SchemaError(in_order(faults)) from None
            return IncludedItems((), ())
        finally:
            self._depth -= inclusion.depth

    def _document(self, path: Path, folder: Folder, inclusion: Inclusion) -> SchemaDocument | None:
        """Return an included document, or None if its faults were already reported."""
        if path in self._known:
            return self._known[path]
        if len(self.chain) >= MAX_INCLUDES or self._depth >= MAX_DEPTH:
            raise self._too_much(f"includes are nested more than {MAX_INCLUDES} deep", inclusion)
        self._known[path] = None
        self.chain.append(path)
        try:
            source = self.open(folder.document(path), folder.name(path))
            if self._bytes > MAX_BYTES:
                raise self._too_much(f"the files of this schema have more than {MAX_BYTES} bytes", inclusion)
            document = self.whole(source, folder)
            _check_names(document)
        finally:
            self.chain.pop()
        self._known[path] = document
        return document

    def _spend(self, num_looked_at: int, taken: IncludedItems, inclusion: Inclusion) -> None:
        size = _measure(taken.here)
        self._items += size.items + num_looked_at
        self._characters += size.characters
        if self._items > MAX_ELEMENTS:
            raise self._too_much(f"includes add more than {MAX_ELEMENTS} items to this schema", inclusion)
        if self._characters > MAX_BYTES:
            raise self._too_much(f"includes add more than {MAX_BYTES} characters to this schema", inclusion)
        if self._depth + size.depth > MAX_DEPTH:
            raise self._too_much(f"with this include, elements are nested more than {MAX_DEPTH} deep", inclusion)

    def _too_much(self, message: str, inclusion: Inclusion) -> SchemaError:
        self._full = True
        fix = "include fewer files, or fewer of their modules with select="
        return SchemaError([diagnostic("PC221", message, inclusion.wanted.span, fix)])


def _check_names(document: SchemaDocument) -> None:
    """Refuse a document with invalid names or unknown paths."""
    index = index_schema(document)
    compile_rules(index, index.faults)
    for parent, scaffold in index.scaffolds:
        scaffold_members(parent, scaffold, index, index.faults)
    if index.faults:
        raise SchemaError(in_order(index.faults))


def _measure(items: Iterable[Item]) -> _Size:
    number = characters = depth = 0
    for item in items:
        number += 1
        if isinstance(item, Text):
            characters += len(item.text)
        elif isinstance(item, Module | Union | Turn):
            inner = _measure(item.children)
            number, characters, depth = number + inner.items, characters + inner.characters, max(depth, inner.depth)
    return _Size(number, characters, depth + 1)


def _from(fault: Diagnostic, span: Span) -> Diagnostic:
    """Return a fault of an included file with the place of the include added."""
    if fault.span.source == span.source:
        return fault
    return replace(fault, related=(*fault.related, (span, "included here")))


def _circle(paths: list[Path], folder: Folder, span: Span) -> Diagnostic:
    names = [path.relative_to(folder.home).as_posix() for path in paths]
    message = f"files include each other in a cycle: {' includes '.join(names)}"
    return diagnostic("PC217", message, span, "move the shared modules into a third file")
