"""Atomic writes: a file gets its name when it is whole and on the disk, and not before."""

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
def atomic_write(path: Path, *, temporary: Path | None = None) -> Iterator[IO[bytes]]:
    """Write a file that takes the place of `path` when the context ends, or leaves no trace if an error ends it.

    A file that is replaced passes its mode on. A link is replaced and not followed.

    Args:
        temporary: The file that is written and then renamed, in the same folder; by default one with a random name.

    Raises:
        OSError: It cannot be written. The error names `path`, whatever file it is about.
    """
    written = temporary or path.with_name(f".{path.name[:100]}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        descriptor = os.open(written, _FLAGS, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                if path.is_file() and not path.is_symlink():
                    written.chmod(stat.S_IMODE(path.stat().st_mode))
                yield file
                file.flush()
                os.fsync(file.fileno())
            publish(written, path)
        except BaseException:
            written.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def publish(written: Path, path: Path) -> None:
    """Give a file that is whole and on the disk its name, at once and for good."""
    written.replace(path)
    if os.name != "posix":  # folders cannot be opened there
        return
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that does not know this
            raise
    finally:
        os.close(descriptor)
