"""Files that commands write: whole or not at all.

Comes in: paths and contents. Goes out: files. What stands in them is not known here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from promptcache.atomic import atomic_write
from promptcache.cli.exits import UsageMistake


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


def write_made(files: Mapping[Path, str], read: Collection[str]) -> None:
    """Write files that are made of documents, over those that they were before.

    Args:
        read: The files of these documents.

    Raises:
        UsageMistake: one is such a document; then none is written.
        OSError: one is or lies in what is no place for a file; then none is written, either.
    """
    for path in files:
        check_target(path, read)
    for path, text in files.items():
        if path.is_file():
            replace_file(path, text.encode())
        elif path.exists():
            with _named(path):
                path.write_bytes(text.encode())  # a pipe or a device
        else:
            _create(path, text.encode())


def check_target(path: Path, read: Collection[str]) -> None:
    """Refuse to write where one of the files stands that were read, or where no file can stand.

    Raises:
        UsageMistake: it is such a file.
        OSError: it is a folder, or there is no folder for it.
    """
    if any(_same(path, Path(name)) for name in read):
        raise UsageMistake(f"{path} is what is read: write to another file")
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not path.parent.is_dir():
        fault = errno.ENOTDIR if path.parent.exists() else errno.ENOENT
        raise OSError(fault, os.strerror(fault), str(path))


def replace_file(path: Path, data: bytes) -> None:
    """Write over a file; a link keeps pointing where it does, the file keeps its mode, and a read-only one is left."""
    target = path.resolve()
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    with _named(path), atomic_write(target) as file:
        file.write(data)


def _create(path: Path, data: bytes) -> None:
    with _named(path), path.open("xb") as file:
        try:
            file.write(data)
            file.flush()
        except BaseException:
            path.unlink(missing_ok=True)
            raise


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Let errors name the file that the user named: by themselves they name none, or one that is made in passing."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _same(path: Path, other: Path) -> bool:
    return path.exists() and other.exists() and path.samefile(other)
