"""The files that a schema names: confined to a folder, whether their text is taken (`src`) or their modules (`href`).

Comes in: the value of an attribute. Goes out: a path, or the text of a file, or the diagnostic that says why not. This
file knows no XML.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from promptcache.diagnostics import Diagnostic, Span, did_you_mean
from promptcache.language.source import MAX_BYTES

MAX_SUGGESTIONS = 100
"""Looking for suggestions takes time: a document with more faults gets no more of them."""

_MAX_NAMES = 1_000
"""How many files of a folder are looked at for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Where the files of one document lie.

    Attributes:
        home: The folder, all links followed, that no file may lie outside of: that of the document one starts from.
        here: The folder that the paths of this document start at; it lies in `home`.
        shown: `home` as the user wrote it.
    """

    home: Path
    here: Path
    shown: Path

    @classmethod
    def of(cls, folder: Path) -> Folder:
        """Return the folder of the document that one starts from."""
        home = folder.resolve()
        return cls(home=home, here=home, shown=folder)

    def beside(self, path: Path) -> Folder:
        """Return the same for a document that another one names."""
        return Folder(home=self.home, here=path.parent, shown=self.shown)

    def name(self, path: Path) -> str:
        """Return what a file in `home` is called in diagnostics."""
        return str(self.shown / path.relative_to(self.home))

    def from_home(self, written: str) -> str:
        """Return a path of this document as it would be written in `home`."""
        if self.here == self.home or Path(written).is_absolute():
            return written
        return (self.here.relative_to(self.home) / written).as_posix()


def find_file(
    attribute: str, written: str, folder: Folder | None, span: Span, *, may_suggest: bool = True
) -> Path | Diagnostic:
    """Return the file that `src` or `href` names, all links followed; or what is wrong, told at `span`."""
    what = f"{attribute}={written!r}"
    if folder is None:
        mend = "load the schema from a file, or pass folder="
        return _fault("PC214", f"{what} needs a folder, and a schema given as text has none", span, mend)
    try:
        path = (folder.here / written).resolve()
        if not path.is_relative_to(folder.home):
            mend = "move the file there, or copy what it holds"
            return _fault("PC210", f"{what} lies outside the folder of the schema", span, mend)
        if not path.is_file():
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
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
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


def _similar(written: str, folder: Folder) -> str | None:
    """Suggest a file of the folder in which the one that is missing should lie."""
    parent, _, name = written.rpartition("/")
    above = (folder.here / parent).resolve()
    if not above.is_relative_to(folder.home):
        return None
    try:
        with os.scandir(above) as entries:
            known = [entry.name for entry in islice(entries, _MAX_NAMES) if entry.is_file()]
    except OSError:
        return None
    return did_you_mean(name, sorted(known), f"'{parent}/{{}}'" if parent else "'{}'")


def _fault(code: str, message: str, span: Span, mend: str | None = None) -> Diagnostic:
    return Diagnostic(code=code, message=message, span=span, help=mend)
