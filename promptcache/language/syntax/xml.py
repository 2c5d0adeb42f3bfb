"""Parse XML text into a tree of elements, with the exact position of each.

expat reads the document, because it reports exact positions. It stops at a DOCTYPE, before it reads any entity. The
limits of size, depth and number are ours; expat has none.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn, TypeAlias
from xml.parsers import expat

from promptcache.diagnostics import Diagnostic, FaultList, LanguageError, Span, diagnostic
from promptcache.language.limits import MAX_DEPTH, MAX_ELEMENTS, MAX_NAME
from promptcache.language.syntax.malformed import Opened, not_well_formed
from promptcache.language.syntax.source import NOT_IN_XML, Source, decode

_ATTRIBUTE = re.compile(r"""\s+([^\s=/>]+)\s*=\s*("[^"]*"|'[^']*')""")
_TAG_END = re.compile(r"\s*/?>")
_BEFORE_TEXT = re.compile(r"(?:\s+|<!--.*?-->|<!\[CDATA\[)*", re.DOTALL)


class Attribute(NamedTuple):
    """Attribute. Its name starts at `start`, and its value is `[value_start, value_stop)` between the quotes."""

    name: str
    value: str
    source: Source
    start: int
    value_start: int
    value_stop: int

    @property
    def span(self) -> Span:
        """Return the span of the name and the value."""
        return self.source.span(self.start, self.value_stop + 1)

    @property
    def value_span(self) -> Span:
        """Return the span of the value, without the quotes."""
        return self.source.span(self.value_start, self.value_stop)


class Characters(NamedTuple):
    """Character data between two tags, without comments; `[start, stop)` is its range in the source, with comments."""

    text: str
    source: Source
    start: int
    stop: int

    @property
    def blank(self) -> bool:
        """Return whether the text is only whitespace."""
        return not self.text.strip(" \t\n")

    @property
    def span(self) -> Span:
        """Return the span, without the whitespace around the text and the comments before it."""
        text, stop = self.source.text, self.stop
        match = _BEFORE_TEXT.match(text, self.start, stop)
        start = match.end() if match else self.start
        while stop > start and text[stop - 1] in " \t\n":
            stop -= 1
        return self.source.span(start, stop)


class Element(NamedTuple):
    """Element. Its start tag is `[start, stop)`, and the whole element is `[start, end)`."""

    name: str
    attributes: tuple[Attribute, ...]
    children: tuple[Node, ...]
    source: Source
    start: int
    stop: int
    end: int

    @property
    def span(self) -> Span:
        """Return the span of the start tag."""
        return self.source.span(self.start, self.stop)

    @property
    def name_span(self) -> Span:
        """Return the span of the name in the start tag."""
        return self.source.span(self.start + 1, self.start + 1 + len(self.name))


Node: TypeAlias = Element | Characters


def parse_xml(text: str | bytes | Source, name: str, error: type[LanguageError]) -> Element:
    """Parse a document strictly and return its root element.

    Raises:
        LanguageError: Of the class `error`. The document is not well-formed, not UTF-8, too large or too deep, or it
            has a DOCTYPE, a processing instruction or a namespace.
    """
    source = text if isinstance(text, Source) else decode(text, name, error)
    if found := NOT_IN_XML.search(source.text):  # expat would read NUL as half of a UTF-16 character
        raise error([_no_character(source, found.start())])
    return _Reader(source, error).read(error)


def _no_character(source: Source, at: int) -> Diagnostic:
    code = ord(source.text[at])
    kind = "a character that XML does not allow" if code >= 0xFFFE else "a control character"
    message = f"the document contains {kind}, U+{code:04X}"
    return diagnostic("PC001", message, source.span(at, at + 1), "remove it")


class _StopError(Exception):
    """Exception that ends the expat pass with a diagnostic."""

    def __init__(self, code: str, message: str, span: Span, fix: str | None = None) -> None:
        self.diagnostic = diagnostic(code, message, span, fix)


class _Open(NamedTuple):
    """Element whose end tag is not read yet."""

    name: str
    attributes: tuple[Attribute, ...]
    children: list[Node]
    start: int
    stop: int

    def done(self, source: Source, end: int) -> Element:
        return Element(self.name, self.attributes, tuple(self.children), source, self.start, self.stop, end)


class _Reader:
    """Single expat pass over a source. Offsets here are in characters; offsets of expat are in bytes."""

    def __init__(self, source: Source, error: type[LanguageError]) -> None:
        self.source = source
        self.data = source.text.encode()
        self.faults = FaultList(error)
        self._same = source.text.isascii()
        self._bytes_seen = self._offset = self._text_start = self._count = 0
        self._stack: list[_Open] = []
        self._parts: list[str] = []
        self._root: Element | None = None
        self._parser = parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.ordered_attributes = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._parts.append
        parser.ProcessingInstructionHandler = self._instruction
        parser.StartDoctypeDeclHandler = self._doctype
        parser.XmlDeclHandler = self._declaration

    def read(self, error: type[LanguageError]) -> Element:
        try:
            self._parser.Parse(self.data, True)
        except expat.ExpatError as fault:
            offset = len(self.data[: self._parser.ErrorByteIndex].decode(errors="ignore"))
            opened = [Opened(each.name, each.start, each.stop) for each in self._stack]
            fault_found = not_well_formed(self.source, fault.code, offset, self._text_start, opened)
            raise error([fault_found]) from None
        except _StopError as stop:
            raise error([stop.diagnostic]) from None
        if self.faults:
            raise error(self.faults)
        assert self._root is not None, "expat accepts no document without a root"
        return self._root

    def _here(self) -> int:
        index = self._parser.CurrentByteIndex
        if self._same:
            return index
        self._offset += len(self.data[self._bytes_seen : index].decode())
        self._bytes_seen = index
        return self._offset

    def _start(self, name: str, pairs: list[str]) -> None:
        here = self._here()
        self._close_text(here)
        self._count += 1
        name_stop = here + 1 + len(name)
        if self._count > MAX_ELEMENTS:
            self._stop(f"the document has more than {MAX_ELEMENTS} elements", here + 1, name_stop)
        if len(self._stack) >= MAX_DEPTH:
            self._stop(f"elements are nested more than {MAX_DEPTH} deep", here + 1, name_stop, "PC005")
        self._check_name(name, here + 1, name_stop)
        attributes, stop = self._attributes(name_stop, pairs)
        self._stack.append(_Open(name, attributes, [], here, stop))
        self._text_start = stop

    def _stop(self, message: str, start: int, stop: int, code: str = "PC009") -> NoReturn:
        raise _StopError(code, message, self.source.span(start, stop))

    def _check_name(self, name: str, start: int, stop: int, *, is_attribute: bool = False) -> None:
        if len(name) > MAX_NAME:
            self._stop(f"a name has {len(name)} characters, and at most {MAX_NAME} are allowed", start, stop)
        if ":" in name or (is_attribute and name == "xmlns"):
            fixes = {"xmlns": "remove it", "xml:space": 'use whitespace="preserve" on the module'}
            fix = fixes.get(name, "remove the attribute" if is_attribute else "remove the prefix")
            message = f"'{name}' uses a namespace; the language has none"
            self.faults.add("PC008", message, self.source.span(start, stop), fix)

    def _attributes(self, offset: int, pairs: list[str]) -> tuple[tuple[Attribute, ...], int]:
        found = []
        for name, value in zip(pairs[::2], pairs[1::2], strict=True):
            match = _ATTRIBUTE.match(self.source.text, offset)
            assert match is not None, "expat has read this attribute"
            offset = match.end()
            attribute = Attribute(name, value, self.source, match.start(1), match.start(2) + 1, offset - 1)
            self._check_name(name, attribute.start, offset, is_attribute=True)
            found.append(attribute)
        end = _TAG_END.match(self.source.text, offset)
        assert end is not None, "expat has read the whole tag"
        return tuple(found), end.end()

    def _end(self, name: str) -> None:
        here = self._here()
        self._close_text(here)
        opened = self._stack.pop()
        if self.source.text[opened.stop - 2] != "/":  # for <a/>, `_text_start` is already correct
            end = self.source.text.find(">", here)
            assert end >= 0, "expat has read the whole tag"
            self._text_start = end + 1
        element = opened.done(self.source, self._text_start)
        if self._stack:
            self._stack[-1].children.append(element)
        else:
            self._root = element

    def _close_text(self, stop: int) -> None:
        if not self._parts:
            return
        text = "".join(self._parts)
        self._parts.clear()
        self._stack[-1].children.append(Characters(text, self.source, self._text_start, stop))

    def _instruction(self, target: str, _data: str) -> None:
        here = self._here()
        span = self.source.span(here, here + 2 + len(target))
        raise _StopError("PC007", f"a processing instruction <?{target}…?> is not allowed", span, "remove it")

    def _doctype(self, *_: object) -> None:
        start = self.source.text.rindex("<!DOCTYPE", 0, self._here() + len("<!DOCTYPE"))  # expat is at its end
        message = "a DOCTYPE is not allowed: documents define no entities and read no other file"
        raise _StopError("PC002", message, self.source.span(start, start + 9), "remove it")

    def _declaration(self, version: str, encoding: str | None, _standalone: int) -> None:
        span = self.source.span(0, self.source.text.find("?>") + 2)
        if version != "1.0":
            raise _StopError("PC001", f"the document is XML {version}; only XML 1.0 is supported", span)
        if encoding is not None and encoding.lower() != "utf-8":
            message = f"the document declares the encoding {encoding}; only UTF-8 is supported"
            raise _StopError("PC006", message, span, "save the document as UTF-8, and remove the declaration")
