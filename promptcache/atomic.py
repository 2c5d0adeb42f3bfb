"""Atomic writes: a file gets its name when its content is complete and synced to disk."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Write a file that replaces `path` when the context ends. An error leaves `path` unchanged and no other file.

    A replaced file keeps its mode. A link is replaced, not followed.

    Raises:
        OSError: The file cannot be written. The error names `path`, never the temporary file.
    """
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        descriptor = os.open(temporary, _FLAGS, 0o666)
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
