"""The files that `src` names: confined to a folder, read once, taken exactly.

Comes in: the value of `src`. Goes out: the file's text, or the diagnostic that says why not. This file knows no XML.
"""

from __future__ import annotations

from pathlib import Path

from promptcache.diagnostics import Diagnostic, Span
from promptcache.language.source import MAX_BYTES


def read_text(src: str, folder: Path | None, span: Span) -> str | Diagnostic:
    """Read the file `src`, which must lie in `folder` or below after all links are resolved.

    Returns:
        Its text, exact but for a byte order mark; or what is wrong, told at `span`.
    """
    if folder is None:
        mend = "load the schema from a file, or pass folder="
        return _fault("PC214", f"src={src!r} needs a folder, and a schema given as text has none", span, mend)
    try:
        home = folder.resolve()
        path = (home / src).resolve()
        if not path.is_relative_to(home):
            mend = "move the file there, or copy its text"
            return _fault("PC210", f"src={src!r} lies outside the folder of the schema", span, mend)
        if not path.is_file():
            return _fault("PC211", f"src={src!r} is no file in the folder of the schema", span)
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as fault:
        return _fault("PC211", f"src={src!r} cannot be read: {fault.strerror}", span)
    except RuntimeError:  # what Path.resolve raises up to Python 3.12
        return _fault("PC211", f"src={src!r} cannot be read: its links lead in a circle", span)
    if len(data) > MAX_BYTES:
        return _fault("PC213", f"src={src!r} has more than {MAX_BYTES} bytes", span)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        message = f"src={src!r} is not UTF-8: byte 0x{data[fault.start]:02x} in line {line}"
        return _fault("PC212", message, span, "save the file as UTF-8")


def _fault(code: str, message: str, span: Span, mend: str | None = None) -> Diagnostic:
    return Diagnostic(code=code, message=message, span=span, help=mend)
