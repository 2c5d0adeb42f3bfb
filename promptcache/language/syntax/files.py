"""The files of a document, confined to a folder on a disk or in memory, and the templates among them.

`src` gives the text of a file and `href` its modules. A file called `*.xml.j2` is rendered when it is opened. Jinja2,
which takes as long to load as all of the language, is imported with the first template.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from promptcache.diagnostics import Diagnostic, InvalidValue, LanguageError, SchemaError, Span, did_you_mean, instance
from promptcache.language.syntax.source import MAX_BYTES, Source, decode, read_document

MAX_SUGGESTIONS = 100
"""Suggestions take time to find: after so many faults a document gets no more of them."""

Files: TypeAlias = Path | Mapping[str, str]
"""Where files lie: a folder, or in memory their texts by their paths, which are written with slashes."""

_MAX_NAMES = 1_000
"""How many files of a folder are looked at for one."""

_SUFFIX = ".xml.j2"
_CONTEXT = instance("a mapping of names to plain data", Mapping) | None
_MEMORY = Path("/memory")
"""The folder of files in memory; it never exists on a disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Where the files of one document lie.

    Attributes:
        home: The folder, all links followed, that no file may lie outside of: that of the document one starts from.
        here: The folder that the paths of this document start at; it lies in `home`.
        shown: `home` as the user wrote it.
        texts: The files, where they lie in memory.
    """

    home: Path
    here: Path
    shown: Path
    texts: Mapping[Path, str] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, files: Files) -> Folder:
        """Return the folder of the document that one starts from."""
        if isinstance(files, Path):
            home = files.resolve()
            return cls(home=home, here=home, shown=files)
        texts = {_MEMORY / name: text for name, text in files.items()}
        return cls(home=_MEMORY, here=_MEMORY, shown=Path(), texts=texts)

    def beside(self, path: Path) -> Folder:
        """Return the same for a document that another one names."""
        return replace(self, here=path.parent)

    def name(self, path: Path) -> str:
        """Return what a file in `home` is called in diagnostics."""
        return str(self.shown / path.relative_to(self.home))

    def from_home(self, written: str) -> str:
        """Return a path of this document as it would be written in `home`."""
        if self.here == self.home or Path(written).is_absolute():
            return written
        return (self.here.relative_to(self.home) / written).as_posix()

    def path(self, written: str) -> Path:
        """Return where a path of this document leads, all links followed."""
        path = self.here / written
        return path.resolve() if self.texts is None else Path(os.path.normpath(path))

    def has(self, path: Path) -> bool:
        """Whether there is such a file."""
        return path.is_file() if self.texts is None else path in self.texts

    def names(self, above: Path) -> Iterator[str]:
        """Yield the names of files that lie directly in a folder, if it holds many not of all."""
        if self.texts is not None:
            yield from (path.name for path in islice(self.texts, _MAX_NAMES) if path.parent == above)
            return
        with os.scandir(above) as entries:
            yield from (entry.name for entry in islice(entries, _MAX_NAMES) if entry.is_file())

    def read(self, path: Path) -> bytes:
        """Read a file; of one that is too large, one byte too much."""
        if self.texts is not None:
            return self.texts[path].encode(errors="surrogatepass")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)

    def document(self, path: Path) -> bytes:
        """Read a document of the schema.

        Raises:
            SchemaError: it cannot be read.
        """
        return read_document(path, SchemaError) if self.texts is None else self.read(path)


def find_file(
    attribute: str, written: str, folder: Folder | None, span: Span, *, may_suggest: bool = True
) -> Path | Diagnostic:
    """Return the file that `src` or `href` names, all links followed; or what is wrong, told at `span`."""
    what = f"{attribute}={written!r}"
    if folder is None:
        advice = "load the schema from a file, or pass folder="
        return _fault("PC214", f"{what} needs a folder, and a schema given as text has none", span, advice)
    try:
        path = folder.path(written)
        if not path.is_relative_to(folder.home):
            advice = "move the file there, or copy what it holds"
            return _fault("PC210", f"{what} lies outside the folder of the schema", span, advice)
        if not folder.has(path):
            near = _similar(written, folder) if may_suggest else None
            return _fault("PC211", f"{what} is no file in the folder of the schema", span, near)
    except OSError as fault:
        return _fault("PC211", f"{what} cannot be read: {fault.strerror}", span)
    except RuntimeError:  # what Path.resolve raises up to Python 3.12
        return _fault("PC211", f"{what} cannot be read: its links lead in a circle", span)
    return path


def read_src(written: str, folder: Folder | None, span: Span, *, may_suggest: bool = True) -> str | Diagnostic:
    """Return the text of the file that `src` names, exact but for a byte order mark; or what is wrong."""
    path = find_file("src", written, folder, span, may_suggest=may_suggest)
    if isinstance(path, Diagnostic):
        return path
    assert folder is not None, "a file was found in it"
    try:
        data = folder.read(path)
    except OSError as fault:
        return _fault("PC211", f"src={written!r} cannot be read: {fault.strerror}", span)
    if len(data) > MAX_BYTES:
        return _fault("PC213", f"src={written!r} has more than {MAX_BYTES} bytes", span)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        message = f"src={written!r} is not UTF-8: byte 0x{data[fault.start]:02x} in line {line}"
        return _fault("PC212", message, span, "save the file as UTF-8")


def is_template(name: str) -> bool:
    """Whether a document is a template, which its name tells."""
    return name.endswith(_SUFFIX)


def open_document(
    data: str | bytes, name: str, context: Mapping[str, object] | None, error: type[LanguageError]
) -> Source:
    """Return the text of a document that was read; a template, as its name tells, is rendered with `context`.

    Raises:
        LanguageError: of the class `error`; it is too large or not UTF-8, or what `render_template` finds.
    """
    if is_template(name):
        _CONTEXT.check("context", context, InvalidValue)
        from promptcache.language.syntax.templates import render_template

        return render_template(data, context, name, error)
    return decode(data, name, error)


def no_template(name: str) -> Diagnostic:
    """Report a context that was given although there is no template to use it."""
    message = f"a context is for templates, whose names end in {_SUFFIX}"
    return Diagnostic(code="PC605", message=message, span=Span(name, 1, 1, 1, 1))


def _similar(written: str, folder: Folder) -> str | None:
    """Suggest a file of the folder in which the one that is missing should lie."""
    parent, _, name = written.rpartition("/")
    above = folder.path(parent)
    if not above.is_relative_to(folder.home):
        return None
    try:
        known = sorted(folder.names(above))
    except OSError:
        return None
    return did_you_mean(name, known, f"'{parent}/{{}}'" if parent else "'{}'")


def _fault(code: str, message: str, span: Span, advice: str | None = None) -> Diagnostic:
    return Diagnostic(code=code, message=message, span=span, help=advice)
