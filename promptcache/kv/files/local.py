"""Local folders that other programs may write to, as a file system of fsspec. No link in them is followed."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import BinaryIO

from fsspec.implementations.local import LocalFileSystem

from promptcache.atomic import NotRegular, open_regular, publish
from promptcache.diagnostics import CorruptEncoding, StoreError

_UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO)
"""Errors of one file. Other errors concern the whole file system."""


class LocalFiles(LocalFileSystem):  # type: ignore[misc] # fsspec has no types
    """Local files whose writes are on the disk when they have their name."""

    def pipe_file(self, path: str, value: bytes) -> None:
        """Write and sync a new file."""
        with os.fdopen(open_regular(Path(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(value)
            file.flush()
            os.fsync(file.fileno())

    def mv(self, path1: str, path2: str) -> None:
        """Rename a file and sync its folder."""
        publish(Path(path1), Path(path2))


def open_file(path: str, *, mark_use: bool = False) -> BinaryIO | None:
    """Open a file, or return None if there is none.

    Args:
        path: Path of the file.
        mark_use: Whether to set its modification time.

    Raises:
        CorruptEncoding: It is no regular file, or it cannot be read.
        OSError: The file system does not answer.
    """
    try:
        file = os.fdopen(open_regular(Path(path)), "rb")
    except FileNotFoundError:
        return None
    except NotRegular as error:
        raise CorruptEncoding(f"{path}: is not a file") from error
    except OSError as error:
        if error.errno in _UNREADABLE:
            raise CorruptEncoding(f"{path}: cannot be read: {error.strerror}") from error
        raise
    if mark_use:
        with contextlib.suppress(OSError):  # a read-only folder, or the file of another user
            os.utime(file.fileno())
    return file


def expand_home(folder: str | os.PathLike[str]) -> Path:
    """Return a path with `~` or `~user` at its start replaced by the home folder.

    Raises:
        StoreError: There is no such user, or the home folder of this user is unknown.
    """
    path = Path(folder)
    try:
        return path.expanduser()
    except RuntimeError:
        reason = "there is no such user here" if path.parts[0] != "~" else "HOME is not set, and this user has no home"
        raise StoreError(f"store '{path}': {reason}; write the folder's whole path") from None
