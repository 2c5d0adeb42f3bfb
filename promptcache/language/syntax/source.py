"""Decode the text of a document into a `Source`, which converts offsets into spans.

CR LF and CR count as one LF, as in XML.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import unescape
from itertools import accumulate, islice
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from promptcache.diagnostics import (
    Diagnostic,
    InvalidValue,
    LanguageError,
    Span,
    diagnostic,
    did_you_mean,
    instance,
    listed,
)
from promptcache.language.limits import MAX_BYTES

NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that no XML document can express."""

_MAX_LISTED = 6
_DOCUMENT = instance("a document, as text or bytes,", str, bytes)
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, b"<\0", b"\0<")
"""First bytes of a UTF-16 document, with or without a byte order mark."""

_BINARY = {
    b"\x89PNG": "a picture (PNG)",
    b"\xff\xd8\xff": "a picture (JPEG)",
    b"GIF8": "a picture (GIF)",
    b"%PDF": "a PDF",
    b"PK\x03\x04": "a ZIP archive, or a document of an office program",
}
"""Kinds of files that are no text, by their first bytes."""

MAX_NAMES = 1_000
"""Maximum number of files of a folder that are searched for a suggestion."""

HEAD_BYTES = 1 << 16
"""Bytes of a document that are enough for the start tag of its root element."""

# possessive quantifiers: linear time for any file
_ROOT = re.compile(
    r"""(?:\s++|<!--.*?-->|<\?.*?\?>|<!(?!--)[^>]*+>)*+<([^\s/>]++)((?:"[^"]*+"|'[^']*+'|[^>"'])*+)""", re.DOTALL
)
_ATTRIBUTE = re.compile(r"""([^\s=]++)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)')""")


class RootTag(NamedTuple):
    """The start tag of a root element."""

    name: str
    attributes: Mapping[str, str]


def root_tag(data: bytes) -> RootTag | None:
    """Return the start tag of a document, read from its first `HEAD_BYTES` without checking it; None without any."""
    is_wide = data.startswith(_UTF_16)
    little = data.startswith((codecs.BOM_UTF16_LE, b"<\0"))
    encoding = ("utf-16-le" if little else "utf-16-be") if is_wide else "utf-8"
    root = _ROOT.match(data[:HEAD_BYTES].decode(encoding, errors="replace").removeprefix("\ufeff"))
    if root is None:
        return None
    found = _ATTRIBUTE.finditer(root[2])
    return RootTag(root[1], {each[1]: unescape(each[2] if each[2] is not None else each[3]) for each in found})


def with_root_attribute(data: bytes, name: str, value: str) -> bytes:
    """Return a valid document with an attribute of its root element set. All other bytes stay as they are.

    Args:
        value: Text without quotes, "&" and "<".
    """
    text = data.decode("utf-8")
    root = _ROOT.match(text, pos=int(text.startswith("\ufeff")))
    assert root is not None, "a valid document has a root element"
    for written in _ATTRIBUTE.finditer(text, *root.span(2)):
        if written[1] == name:
            start, stop = written.span(2 if written[2] is not None else 3)
            return f"{text[:start]}{value}{text[stop:]}".encode()
    end = root.start(2) + len(root[2].rstrip("/").rstrip())
    return f'{text[:end]} {name}="{value}"{text[end:]}'.encode()


class RenderedPiece(NamedTuple):
    """Part of a rendered document that begins at `start` and comes from `[written, written_stop)` of the template.

    A verbatim piece has the same text in the template. The template computes the text of any other piece.
    """

    start: int
    written: int
    written_stop: int
    verbatim: bool


_start = attrgetter("start")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Text of a document, with its name for diagnostics and the offsets of its lines.

    `first` is the line and column of the first character. It is not (1, 1) if the text is part of another document. A
    rendered document has a `template`, to which the `pieces` map it.
    """

    name: str
    text: str = field(repr=False)
    line_starts: tuple[int, ...] = field(repr=False)
    template: Source | None = field(default=None, repr=False)
    pieces: tuple[RenderedPiece, ...] = field(default=(), repr=False)
    first: tuple[int, int] = field(default=(1, 1), repr=False)

    def span(self, start: int, stop: int) -> Span:
        """Return the span of the characters `[start, stop)`. A rendered document has its spans in the template."""
        if self.template is not None:
            first, last = (
                self.pieces[max(0, bisect_right(self.pieces, offset, key=_start) - 1)]
                for offset in (start, max(start, stop - 1))
            )
            if start == stop:  # a value that wrote nothing is the first of the pieces that begin here
                index = bisect_left(self.pieces, start, key=_start)
                first = last = next((piece for piece in self.pieces[index : index + 1] if piece.start == start), first)
            begin = first.written + (start - first.start if first.verbatim else 0)
            end = last.written + stop - last.start if last.verbatim else last.written_stop
            return self.template.span(begin, max(begin, end))
        return Span(self.name, *self._place(start), *self._place(stop), self)

    def _place(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self.line_starts, offset)
        column = offset - self.line_starts[line - 1] + (self.first[1] if line == 1 else 1)
        return line + self.first[0] - 1, column

    def line(self, number: int) -> str | None:
        """Return line `number`, counted from 1, or None if there is no such line."""
        if not 0 < number <= len(self.line_starts):
            return None
        start = self.line_starts[number - 1]
        stop = self.line_starts[number] - 1 if number < len(self.line_starts) else len(self.text)
        return self.text[start:stop]


def decode(text: str | bytes, name: str, error: type[LanguageError]) -> Source:
    """Decode a document into a `Source`.

    Raises:
        LanguageError: Of the class `error`. The document is too large or not UTF-8.
    """
    _DOCUMENT.check("text", text, InvalidValue)
    too_long = f"the document has more than {MAX_BYTES} bytes"
    if len(text) > MAX_BYTES:
        raise error([_at_start(name, "PC004", too_long)])
    if isinstance(text, bytes) and text.startswith(_UTF_16):
        advice = "save the file as UTF-8 (Notepad: Save as, Encoding; PowerShell: -Encoding utf8)"
        raise error([_at_start(name, "PC006", "the document is UTF-16; only UTF-8 is supported", advice)])
    try:
        data = text.encode() if isinstance(text, str) else text
        text = data.decode("utf-8-sig")
    except UnicodeEncodeError as fault:
        message = f"the text contains a lone surrogate at character {fault.start}, which UTF-8 cannot represent"
        raise error([_at_start(name, "PC006", message)]) from None
    except UnicodeDecodeError as fault:
        raise error([_not_utf8(data, name, fault.start)]) from None
    if len(data) > MAX_BYTES:
        raise error([_at_start(name, "PC004", too_long)])
    return source_of(text, name)


def source_of(text: str, name: str) -> Source:
    """Return the source of a text that is already decoded."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    sizes = map((1).__add__, map(len, text.split("\n")))  # fast, because a document may have eight million lines
    starts = tuple(accumulate(sizes, initial=0))
    return Source(name=name, text=text, line_starts=starts[:-1])


def read_document(path: Path, error: type[LanguageError]) -> bytes:
    """Read the file of a document, up to one byte more than `MAX_BYTES`.

    Raises:
        LanguageError: Of the class `error`. The path is not a regular file, or the file cannot be read.
    """
    try:
        if path.is_dir():
            raise error([_at_start(str(path), "PC010", "this is a folder, not a file")])
        if not path.exists():
            raise error([_at_start(str(path), "PC010", "there is no such file", similar_path(path))])
        if not path.is_file():
            raise error([_at_start(str(path), "PC010", "this is a pipe or a device, not a file")])
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as fault:
        raise error([_at_start(str(path), "PC010", f"the file cannot be read: {fault.strerror}")]) from None


def similar_file(name: str, known: Iterable[str], form: str = "'{}'") -> str | None:
    """Suggest the file that has a name and a suffix, or a similar name; `form` formats it."""
    known = sorted(known)
    name = next((each for each in known if name and each.startswith(f"{name}.")), name)
    return did_you_mean(name, known, form)


def similar_path(path: Path) -> str:
    """Suggest a file beside one that does not exist, or list the files there with its suffix, or the documents."""
    folder = path.parent
    if not folder.is_dir():
        return f"there is no folder '{folder.absolute()}'"
    names = sorted(each.name for each in islice(folder.iterdir(), MAX_NAMES) if each.is_file())
    ends = (path.suffix,) if path.suffix else (".xml", ".xml.j2")
    others = listed([each for each in names if each.endswith(ends)], _MAX_LISTED)
    near = similar_file(path.name, names, f"'{folder / '{}'}'")
    return near or f"folder '{folder.absolute()}' has {others or f'no file *{ends[0]}'}"


def _not_utf8(data: bytes, name: str, start: int) -> Diagnostic:
    if kind := next((words for first, words in _BINARY.items() if data.startswith(first)), None):
        return _at_start(name, "PC006", f"the file is {kind}, and a document is text", "name a schema or a prompt")
    length = len(source_of(data[:start].decode("utf-8-sig"), name).text)
    span = source_of(data.decode("utf-8-sig", errors="replace"), name).span(length, length + 1)
    message = f"byte 0x{data[start]:02x} is not UTF-8"
    meant = data[start : start + 1].decode("cp1252", errors="ignore")
    advice = "save the file as UTF-8"
    if meant.isprintable() and meant:
        advice += f"; in Windows-1252 this byte is {meant!r}"
    return diagnostic("PC006", message, span, advice)


def _at_start(name: str, code: str, message: str, fix: str | None = None) -> Diagnostic:
    return diagnostic(code, message, Span(name, 1, 1, 1, 1), fix)
