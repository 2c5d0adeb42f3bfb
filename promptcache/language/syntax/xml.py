"""Parse XML text into a tree of elements, with the exact position of each.

expat reads the document, because it reports exact positions. It stops at a DOCTYPE, before it reads any entity. The
limits of size, depth and number are ours; expat has none.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn, TypeAlias
from xml.parsers import expat

from promptcache.diagnostics import FaultList, LanguageError, Span, diagnostic
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
        code = ord(found[0])
        kind = "a character that XML does not allow" if code >= 0xFFFE else "a control character"
        message = f"the document contains {kind}, U+{code:04X}"
        raise error([diagnostic("PC001", message, source.span(*found.span()), "remove it")])
    reader = _Reader(source, error)
    try:
        reader.parser.Parse(reader.data, True)
    except expat.ExpatError as fault:
        offset = len(reader.data[: reader.parser.ErrorByteIndex].decode(errors="ignore"))
        raise error([not_well_formed(source, fault.code, offset, reader.text_start, reader.opened)]) from None
    if reader.faults:
        raise error(reader.faults)
    assert reader.root is not None, "expat accepts no document without a root"
    return reader.root


class _Reader:
    """Single expat pass over a source. Offsets here are in characters; offsets of expat are in bytes.

    Attributes:
        opened: Elements whose end tag is not read yet, outermost first. `_contents` has the attributes and children.
        text_start: End of the last tag.
    """

    def __init__(self, source: Source, error: type[LanguageError]) -> None:
        self.source, self._error = source, error
        self.data = source.text.encode()
        self.faults = FaultList(error)
        self.root: Element | None = None
        self.opened: list[Opened] = []
        self.text_start = 0
        self._contents: list[tuple[tuple[Attribute, ...], list[Node]]] = []
        self._same = source.text.isascii()
        self._bytes_seen = self._offset = self._count = 0
        self._parts: list[str] = []
        self.parser = parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.ordered_attributes = True
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._parts.append
        parser.ProcessingInstructionHandler = self._instruction
        parser.StartDoctypeDeclHandler = self._doctype
        parser.XmlDeclHandler = self._declaration

    def _here(self) -> int:
        """Return the offset of the tag or instruction that expat has read; the text before it ends there."""
        index = self.parser.CurrentByteIndex
        if not self._same:
            self._offset += len(self.data[self._bytes_seen : index].decode())
            self._bytes_seen = index
            index = self._offset
        if self._parts:
            self._contents[-1][1].append(Characters("".join(self._parts), self.source, self.text_start, index))
            self._parts.clear()
        return index

    def _start(self, name: str, pairs: list[str]) -> None:
        start = self._here()
        self._count += 1
        offset = start + 1 + len(name)
        if self._count > MAX_ELEMENTS:
            self._stop("PC009", f"the document has more than {MAX_ELEMENTS} elements", start + 1, offset)
        if len(self.opened) >= MAX_DEPTH:
            self._stop("PC005", f"elements are nested more than {MAX_DEPTH} deep", start + 1, offset)
        self._check_name(name, start + 1, offset)
        attributes = []
        for attribute, value in zip(pairs[::2], pairs[1::2], strict=True):
            match = _ATTRIBUTE.match(self.source.text, offset)
            assert match is not None, "expat has read this attribute"
            offset = match.end()
            self._check_name(attribute, match.start(1), offset, is_attribute=True)
            attributes.append(Attribute(attribute, value, self.source, match.start(1), match.start(2) + 1, offset - 1))
        end = _TAG_END.match(self.source.text, offset)
        assert end is not None, "expat has read the whole tag"
        self.text_start = end.end()
        self.opened.append(Opened(name, start, self.text_start))
        self._contents.append((tuple(attributes), []))

    def _stop(self, code: str, message: str, start: int, stop: int, fix: str | None = None) -> NoReturn:
        raise self._error([diagnostic(code, message, self.source.span(start, stop), fix)])

    def _check_name(self, name: str, start: int, stop: int, *, is_attribute: bool = False) -> None:
        if len(name) > MAX_NAME:
            self._stop("PC009", f"a name has {len(name)} characters, and at most {MAX_NAME} are allowed", start, stop)
        if ":" in name or (is_attribute and name == "xmlns"):
            fixes = {"xmlns": "remove it", "xml:space": 'use whitespace="preserve" on the module'}
            fix = fixes.get(name, "remove the attribute" if is_attribute else "remove the prefix")
            message = f"'{name}' uses a namespace; the language has none"
            self.faults.add("PC008", message, self.source.span(start, stop), fix)

    def _end(self, _name: str) -> None:
        here = self._here()
        name, start, stop = self.opened.pop()
        if self.source.text[stop - 2] != "/":  # for <a/>, `text_start` is already correct
            end = self.source.text.find(">", here)
            assert end >= 0, "expat has read the whole tag"
            self.text_start = end + 1
        attributes, children = self._contents.pop()
        element = Element(name, attributes, tuple(children), self.source, start, stop, self.text_start)
        if self._contents:
            self._contents[-1][1].append(element)
        else:
            self.root = element

    def _instruction(self, target: str, _data: str) -> None:
        here = self._here()
        message = f"a processing instruction <?{target}…?> is not allowed"
        self._stop("PC007", message, here, here + 2 + len(target), "remove it")

    def _doctype(self, *_: object) -> None:
        start = self.source.text.rindex("<!DOCTYPE", 0, self._here() + len("<!DOCTYPE"))  # expat is at its end
        message = "a DOCTYPE is not allowed: documents define no entities and read no other file"
        self._stop("PC002", message, start, start + 9, "remove it")

    def _declaration(self, version: str, encoding: str | None, _standalone: int) -> None:
        stop = self.source.text.find("?>") + 2
        if version != "1.0":
            self._stop("PC001", f"the document is XML {version}; only XML 1.0 is supported", 0, stop)
        if encoding is not None and encoding.lower() != "utf-8":
            message = f"the document declares the encoding {encoding}; only UTF-8 is supported"
            self._stop("PC006", message, 0, stop, "save the document as UTF-8, and remove the declaration")
