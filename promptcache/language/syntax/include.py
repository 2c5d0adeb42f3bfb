"""Open the files that a schema document includes, within limits that hold for all of them together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from promptcache.diagnostics import Diagnostic, SchemaError, Span, diagnostic
from promptcache.language.limits import MAX_BYTES, MAX_DEPTH, MAX_ELEMENTS
from promptcache.language.syntax.files import Folder, find_file, is_template, open_document
from promptcache.language.syntax.source import Source
from promptcache.language.syntax.xml import Element, parse_xml


class IncludedFile(NamedTuple):
    """File of an `include`: its path, the folder to which its own paths are relative, and its root element."""

    path: Path
    folder: Folder
    root: Element


class Includes:
    """Files of one schema document and of all its includes. Each file is read once.

    Attributes:
        chain: Files that are being read, outermost first.
        rendered: Whether any of the files is a template.
    """

    def __init__(self, context: Mapping[str, object] | None) -> None:
        self.chain: list[Path] = []
        self.rendered = False
        self._context = context
        self._roots: dict[Path, Element | None] = {}
        self._num_items = self._num_characters = 0

    def source(self, data: bytes, name: str) -> Source:
        """Return the text of a file; templates are rendered."""
        self.rendered |= is_template(name)
        return open_document(data, name, self._context, SchemaError)

    def open(self, href: str, href_span: Span, folder: Folder | None, span: Span) -> IncludedFile | list[Diagnostic]:
        """Return the file that `href` names, or diagnostics; none if the faults of the file were returned before.

        Raises:
            SchemaError: The includes exceed a limit.
        """
        path = find_file("href", href, folder, href_span)
        if isinstance(path, Diagnostic):
            return [path]
        assert folder is not None, "a file was found in it"
        if path in self.chain:
            return [_circle([*self.chain[self.chain.index(path) :], path], folder, href_span)]
        if len(self.chain) >= MAX_DEPTH:
            raise too_much(f"includes are nested more than {MAX_DEPTH} deep", span)
        if path not in self._roots:
            self._roots[path] = None
            try:
                source = self.source(folder.document(path), folder.name(path))
                self._roots[path] = parse_xml(source, source.name, SchemaError)
            except SchemaError as error:
                return list(error.diagnostics)
        root = self._roots[path]
        if root is None:
            return []
        self._spend(root, span)
        return IncludedFile(path, folder.beside(path), root)

    @contextmanager
    def inside(self, path: Path) -> Iterator[None]:
        """Enter a file that is being read, so that it cannot include itself."""
        self.chain.append(path)
        yield
        self.chain.pop()

    def _spend(self, root: Element, span: Span) -> None:
        self._num_items += _num_items(root)
        self._num_characters += len(root.source.text)
        if self._num_items > MAX_ELEMENTS:
            raise too_much(f"includes add more than {MAX_ELEMENTS} items to this schema", span)
        if self._num_characters > MAX_BYTES:
            raise too_much(f"includes add more than {MAX_BYTES} characters to this schema", span)


def too_much(message: str, span: Span) -> SchemaError:
    """Return the error for includes that exceed a limit."""
    return SchemaError([diagnostic("PC221", message, span, "include fewer or smaller files")])


def included_at(fault: Diagnostic, span: Span) -> Diagnostic:
    """Return a fault of an included file with the place of the include added."""
    if fault.span.source == span.source:
        return fault
    return replace(fault, related=(*fault.related, (span, "included here")))


def _num_items(element: Element) -> int:
    inner = (_num_items(child) if isinstance(child, Element) else 1 for child in element.children)
    return 1 + sum(inner)


def _circle(paths: list[Path], folder: Folder, span: Span) -> Diagnostic:
    names = [path.relative_to(folder.home).as_posix() for path in paths]
    message = f"files include each other in a cycle: {' includes '.join(names)}"
    return diagnostic("PC217", message, span, "move the shared modules into a third file")
