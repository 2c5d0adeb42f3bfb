"""Files that commands write: whole or not at all.

Comes in: paths and contents. Goes out: files. What stands in them is not known here.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from promptcache.cli.exits import UsageMistake
from promptcache.cli.sources import Sources


def write_new(files: Mapping[Path, str]) -> None:
    """Write files that do not exist yet, and their folders; none if one of them does, or cannot be written.

    Raises:
        UsageMistake: one of them exists.
    """
    taken = [str(path) for path in files if path.exists()]
    if taken:
        verb = "exists" if len(taken) == 1 else "exist"
        raise UsageMistake(f"{' and '.join(taken)} {verb} already; nothing was written")
    written: list[Path] = []
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            _create(path, text.encode())
            written.append(path)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise


def write_made(files: Mapping[Path, str], sources: Sources) -> None:
    """Write files that are made of documents, over those that they were before.

    Raises:
        UsageMistake: one is such a document; then none is written.
    """
    for path in files:
        if any(_same(path, Path(name)) for name in sources.names):
            raise UsageMistake(f"{path} is what is read: write to another file")
    for path, text in files.items():
        if path.is_file():
            replace_file(path, text.encode())
        elif path.exists():
            path.write_bytes(text.encode())  # a pipe or a device
        else:
            _create(path, text.encode())


def replace_file(path: Path, data: bytes) -> None:
    """Write over a file; a link keeps pointing where it does, the file keeps its mode, and a read-only one is left."""
    target = path.resolve()
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
    except OSError as error:  # it names a file that the user has never heard of
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(target, name)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _create(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        try:
            file.write(data)
            file.flush()
        except BaseException:
            path.unlink(missing_ok=True)
            raise


def _same(path: Path, other: Path) -> bool:
    return path.exists() and other.exists() and path.samefile(other)
