"""Opening the file of an encoding: its header read, its payload mapped or read.

Comes in: a path. Goes out: a header that is right, and memory that holds the payload, not yet compared with its
checksum. Nothing is allocated or mapped before the header says that the file has the length it should have.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from pathlib import Path

from promptcache.diagnostics import CorruptEncoding
from promptcache.kv.files.header import Header, format_version, head_bytes, read_header

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KEEP_TIMES = getattr(os, "O_NOATIME", 0)
"""The access time says when an encoding was used last; looking at its header is no use. Linux only."""

_UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO)


def open_header(path: Path, key: str) -> Header:
    """Return what a file says of itself.

    Raises:
        CorruptEncoding: It is not what its name promises, or cannot be read.
        FileNotFoundError: It is gone.
        OSError: The file system does not answer.
    """
    descriptor = _open(path)
    try:
        return _header(descriptor, path, key)[0]
    finally:
        os.close(descriptor)


def file_version(path: Path) -> str | None:
    """Return the format version of a file; None if it does not say, or cannot be read."""
    try:
        descriptor = _open(path)
    except (CorruptEncoding, OSError):
        return None
    try:
        return format_version(os.pread(descriptor, head_bytes(os.pread(descriptor, 8, 0)), 0))
    finally:
        os.close(descriptor)


def open_encoding(path: Path, key: str, *, mapped: bool) -> tuple[Header, memoryview]:
    """Return the header of a file and its payload in writable memory; what is written there never reaches the file.

    Raises:
        CorruptEncoding: As for `open_header`, like the others.
    """
    descriptor = _open(path)
    try:
        header, start = _header(descriptor, path, key)
        read = _map if mapped else _read
        return header, read(descriptor, start, header.payload_bytes)
    except ValueError as error:  # mmap: the file has become shorter
        raise CorruptEncoding(f"{path}: changed while it was opened: {error}") from error
    except OSError as error:
        _raise_unreadable(error, path)
        raise
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise CorruptEncoding(f"{path}: is not a file")
        try:
            return os.open(path, _FLAGS | _KEEP_TIMES)
        except PermissionError:  # only its owner may do that
            return os.open(path, _FLAGS)
    except OSError as error:
        _raise_unreadable(error, path)
        raise


def _header(descriptor: int, path: Path, key: str) -> tuple[Header, int]:
    file_bytes = os.fstat(descriptor).st_size
    first = os.pread(descriptor, 8, 0)
    head = os.pread(descriptor, min(head_bytes(first), file_bytes), 0)
    return read_header(head, file_bytes, str(path), key)


def _map(descriptor: int, start: int, payload_bytes: int) -> memoryview:
    mapping = mmap.mmap(descriptor, start + payload_bytes, access=mmap.ACCESS_COPY)  # shared with the page cache
    return memoryview(mapping)[start:]


def _read(descriptor: int, start: int, payload_bytes: int) -> memoryview:
    payload = memoryview(bytearray(payload_bytes))
    done = 0
    while done < payload_bytes:
        count = os.preadv(descriptor, [payload[done:]], start + done)
        if count == 0:
            raise ValueError(f"{payload_bytes - done} bytes of its payload are gone")
        done += count
    return payload


def _raise_unreadable(error: OSError, path: Path) -> None:
    """Where this very file is refused, say that it is of no use."""
    if error.errno in _UNREADABLE:
        raise CorruptEncoding(f"{path}: cannot be read: {error.strerror}") from error
