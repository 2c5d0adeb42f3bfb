"""Read the files that a document names; all of them must be inside one folder, on a disk or in memory.

`src` includes the text of a file, and `href` includes its modules. A file with a name like `*.xml.j2` is a template and
is rendered when it is opened. Jinja2 is imported with the first template, because that import takes as long as the
import of the rest of the language package.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeAlias, TypeVar

from promptcache.diagnostics import Diagnostic, InvalidValue, LanguageError, SchemaError, Span, diagnostic, instance
from promptcache.language.limits import MAX_BYTES
from promptcache.language.syntax.nodes import Collection, Member, Module, SchemaDocument, Text, walk
from promptcache.language.syntax.source import MAX_NAMES, Source, decode, read_document, similar_file


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFiles:
    """Files that a schema names, as they were read with it. Files that it includes are not kept.

    Attributes:
        texts: Texts of modules by `src`.
        members: Members of collections by `src`.
    """

    texts: Mapping[str, str] = field(repr=False)
    members: Mapping[str, Mapping[str, Member]] = field(repr=False)

    @classmethod
    def of(cls, schema: SchemaDocument) -> ReadFiles:
        """Return the files of a schema."""
        items = [item for _, item in walk(schema.children)]
        return cls(
            texts={
                each.src: "".join(text.text for text in each.children if isinstance(text, Text) and text.exact)
                for each in items
                if isinstance(each, Module) and each.src is not None
            },
            members={each.src: each.listed for each in items if isinstance(each, Collection) and each.src is not None},
        )


Files: TypeAlias = Path | Mapping[str, str] | ReadFiles
"""Location of files: a folder, a mapping from paths with slashes to texts in memory, or the files of another schema."""

_Read = TypeVar("_Read")

_SUFFIX = ".xml.j2"
_CONTEXT = instance("a mapping of names to plain data", Mapping) | None
_MEMORY = Path("/memory")
"""Path of the folder of files in memory. No such folder exists on a disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Location of the files of one document.

    Attributes:
        home: Folder of the main document, with links resolved. No file may be outside this folder.
        here: Folder to which the paths of this document are relative; it is inside `home`.
        shown: `home` as the user wrote it.
        texts: Texts of the files by path if the files are in memory, else None.
        members: Members of collections by path, if the files are those of another schema, else None.
    """

    home: Path
    here: Path
    shown: Path
    texts: Mapping[Path, str] | None = field(default=None, repr=False)
    members: Mapping[Path, Mapping[str, Member]] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, files: Files) -> Folder:
        """Return the folder of the main document."""
        if isinstance(files, Path):
            home = files.resolve()
            return cls(home=home, here=home, shown=files)
        named, listed = (files.texts, files.members) if isinstance(files, ReadFiles) else (files, None)
        texts = {_MEMORY / name: text for name, text in named.items()}
        members = None if listed is None else {_MEMORY / name: found for name, found in listed.items()}
        return cls(home=_MEMORY, here=_MEMORY, shown=Path(), texts=texts, members=members)

    def beside(self, path: Path) -> Folder:
        """Return the folder for the document at `path`, which another document names."""
        return replace(self, here=path.parent)

    def name(self, path: Path) -> str:
        """Return the name of a file in `home` for diagnostics."""
        return str(self.shown / path.relative_to(self.home))

    def from_home(self, written: str) -> str:
        """Return a path of this document, relative to `home`; absolute paths do not change."""
        if self.here == self.home or Path(written).is_absolute():
            return written
        return (self.here.relative_to(self.home) / written).as_posix()

    def path(self, written: str) -> Path:
        """Return the absolute form of a path of this document, with links resolved."""
        path = self.here / written
        return path.resolve() if self.texts is None else Path(os.path.normpath(path))

    def document(self, path: Path) -> bytes:
        """Read a schema document.

        Raises:
            SchemaError: The document cannot be read.
        """
        if self.texts is None:
            return read_document(path, SchemaError)
        return self.texts[path].encode(errors="surrogatepass")


def find_file(
    attribute: str, written: str, folder: Folder | None, span: Span, document: str = "schema"
) -> Path | Diagnostic:
    """Return the path of the file that `src` or `href` names, with links resolved, or a diagnostic at `span`.

    `document` is what names the file, a schema or a prompt.
    """
    what = f"{attribute}={written!r}"
    if folder is None:
        advice = f"load the {document} from a file, or pass folder="
        message = f"{what} needs a folder, but a {document} that is given as text has none"
        return diagnostic("PC214", message, span, advice)
    try:
        path = folder.path(written)
        if not path.is_relative_to(folder.home):
            advice = "move the file into the folder, or copy its content"
            return diagnostic("PC210", f"{what} is outside the folder of the {document}", span, advice)
        if not (path.is_file() if folder.texts is None else path in folder.texts):
            advice = _similar(written, folder) or "a path is relative to the folder of the file that contains it"
            if "://" in written:
                advice = "only files in this folder can be named: copy the file"
            if folder.members is not None:
                advice = "only the files that the schema already names can be used here"
            return diagnostic("PC211", f"{what} is not a file in the folder of the {document}", span, advice)
    except OSError as fault:
        return diagnostic("PC211", f"{what} cannot be read: {fault.strerror}", span)
    except RuntimeError:  # raised by Path.resolve up to Python 3.12
        return diagnostic("PC211", f"{what} cannot be read: its links form a cycle", span)
    return path


def read_src(written: str, folder: Folder | None, span: Span, document: str = "schema") -> str | Diagnostic:
    """Return the unchanged text of the file that `src` names, without a byte order mark, or a diagnostic.

    `document` is as for `find_file`.
    """

    def read(file: BinaryIO) -> str | Diagnostic:
        data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            return diagnostic("PC213", f"src={written!r} has more than {MAX_BYTES} bytes", span)
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as fault:
            line = data.count(b"\n", 0, fault.start) + 1
            message = f"src={written!r} is not UTF-8: byte 0x{data[fault.start]:02x} in line {line}"
            return diagnostic("PC212", message, span, "save the file as UTF-8")

    return open_src(written, folder, span, read, document)


def open_src(
    written: str,
    folder: Folder | None,
    span: Span,
    read: Callable[[BinaryIO], _Read],
    document: str = "schema",
) -> _Read | Diagnostic:
    """Return what `read` returns for the file that `src` names, or a diagnostic.

    `document` is as for `find_file`.
    """
    path = find_file("src", written, folder, span, document)
    if isinstance(path, Diagnostic):
        return path
    assert folder is not None, "a file was found in it"
    try:
        with path.open("rb") if folder.texts is None else BytesIO(folder.document(path)) as file:
            return read(file)
    except OSError as fault:
        return diagnostic("PC211", f"src={written!r} cannot be read: {fault.strerror}", span)


def is_template(name: str) -> bool:
    """Return whether a document with this name is a template."""
    return name.endswith(_SUFFIX)


def open_document(
    data: str | bytes, name: str, context: Mapping[str, object] | None, error: type[LanguageError]
) -> Source:
    """Return the source of a document from its data. A document with the name of a template is rendered.

    Raises:
        LanguageError: Of the class `error`. The document is too large or not UTF-8, or `render_template` fails.
    """
    if is_template(name):
        _CONTEXT.check("context", context, InvalidValue)
        from promptcache.language.syntax.templates import render_template

        return render_template(data, context, name, error)
    return decode(data, name, error)


def no_template(name: str) -> Diagnostic:
    """Return the diagnostic for a context that was passed although the document is not a template."""
    message = f"only templates take a context, and their names end in {_SUFFIX}"
    return diagnostic("PC605", message, Span(name, 1, 1, 1, 1))


def _similar(written: str, folder: Folder) -> str | None:
    """Suggest a file with a similar name from the folder of the missing file."""
    parent, _, name = written.rpartition("/")
    above = folder.path(parent)
    if not above.is_relative_to(folder.home):
        return None
    try:
        if folder.texts is not None:
            known = [path.name for path in islice(folder.texts, MAX_NAMES) if path.parent == above]
        else:
            with os.scandir(above) as entries:
                known = [entry.name for entry in islice(entries, MAX_NAMES) if entry.is_file()]
    except OSError:
        return None
    return similar_file(name, known, f"'{parent}/{{}}'" if parent else "'{}'")
