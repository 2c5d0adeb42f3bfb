"""Files in folders that other programs may write to: atomic writes, and opens that neither follow links nor wait.

An atomic write gives a file its name when its content is complete and synced to disk.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import IO

_SAFE = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"))
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL


class NotRegular(OSError):
    """A path is a folder, link, pipe, socket or device, where a regular file or a real folder must be."""


def cache_folder() -> Path:
    """Return the user's folder for files of this library that can be made again. It may not exist yet."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "promptcache"
    except RuntimeError:  # no home folder
        return Path(gettempdir()) / "promptcache"


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor.

    A link is not followed, and a pipe or a device is not waited for. A created file has mode 0o666, less the umask.

    Raises:
        NotRegular: The path is something else.
        OSError: The file cannot be opened.
    """
    fault = NotRegular(errno.EINVAL, "is not a regular file", str(path))
    try:
        descriptor = os.open(path, flags | _SAFE, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EISDIR):
            raise fault from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise fault
    return descriptor


def refuse_links(*folders: Path) -> None:
    """Check that no path is a link: files behind it are not ours to write, move or remove. A path may be missing.

    Raises:
        NotRegular: A path is a link.
        OSError: The folder above a path cannot be searched.
    """
    for folder in folders:
        if folder.is_symlink():
            raise NotRegular(errno.ELOOP, f"'{folder.name}' is a link; only the whole folder may be one", str(folder))


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that replaces `path` when the context ends. An error leaves `path` unchanged and no other file.

    A replaced file keeps its mode. A link is replaced, not followed.

    Raises:
        OSError: The file cannot be written. The error names `path`, never the temporary file.
    """
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        descriptor = open_regular(temporary, _NEW)
        try:
            with os.fdopen(descriptor, "wb") as file:
                if path.is_file() and not path.is_symlink():
                    temporary.chmod(stat.S_IMODE(path.stat().st_mode))
                yield file
                file.flush()
                os.fsync(file.fileno())
            publish(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def publish(temporary: Path, path: Path) -> None:
    """Rename a complete, synced file to its final name, and sync its folder."""
    temporary.replace(path)
    if os.name != "posix":  # folders cannot be opened there
        return
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot sync folders
            raise
    finally:
        os.close(descriptor)
