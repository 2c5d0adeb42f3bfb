"""The folder of a disk tier: the names of its files, its locks, and safe ways to open, add and quarantine files.

    encodings/KEY.safetensors    one complete file per encoding
    incoming/                    files being written, each locked by its writer
    signatures/MODEL/            a folder like this one, for the signatures of a fingerprint
    version                      format version of all encodings, a number
    quarantine/                  corrupt files, and log.jsonl with time, file and reason
    locks/KEY.lock, lock         held while an encoding is computed, and while files are counted and moved

POSIX only: the folder relies on `flock`, and on open files that outlive their names.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from promptcache.atomic import NotRegular, atomic_write, open_regular, publish, read_regular, refuse_links
from promptcache.diagnostics import CorruptEncoding, StoreError, TierUnavailable, shown
from promptcache.kv.files.format import Header, check_shape, format_version, head_bytes, read_header
from promptcache.kv.keys import file_name, key_of
from promptcache.kv.store import OnWait
from promptcache.kv.types import KVShape

LOCK_TIMEOUT_S = 10.0
_POLL_S = 0.005
_WAIT_S = 0.5  # between two calls of `on_wait`
_LOG = "log.jsonl"
_VERSION = "version"
_VERSION_BYTES = 64  # a number has fewer

_KEEP_TIMES = getattr(os, "O_NOATIME", 0)
"""Linux: reading a header must not change the access time, which records the last use of the encoding."""

_UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO)
"""Errors of one file. Other errors concern the whole file system."""


class FileState(NamedTuple):
    """Identity of one state of a file. It changes when the file is replaced or written."""

    device: int
    inode: int
    nbytes: int
    modified_ns: int

    @staticmethod
    def of(status: os.stat_result) -> FileState:
        """Return the state of the file with this status."""
        return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(slots=True)
class Incoming:
    """A file that is being written. The end of the context removes it, unless it was published."""

    path: Path
    descriptor: int

    def __enter__(self) -> Incoming:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        os.close(self.descriptor)

    def fill(self, parts: Iterable[bytes | memoryview]) -> None:
        """Write and sync the whole content."""
        for part in parts:
            left = memoryview(part)
            while left:
                left = left[os.write(self.descriptor, left) :]
        os.fsync(self.descriptor)

    def publish(self, target: Path) -> None:
        """Rename the file to its final name."""
        publish(self.path, target)


class StoreFolder:
    """The folder of a disk tier. Its methods raise `OSError`, or `TierUnavailable` if a lock is not available."""

    def __init__(self, root: Path) -> None:
        try:
            self.root = root.absolute()  # the program may change its working directory
            if self.root.exists() and not self.root.is_dir():
                raise StoreError(f"store '{root}' is not a folder; name another path")
        except OSError as error:
            raise StoreError(f"store {shown(str(root))} cannot be a folder: {error.strerror}") from error
        self.encodings, self.incoming, self.quarantine, self.locks = (
            self.root / name for name in ("encodings", "incoming", "quarantine", "locks")
        )
        self._lock_timeout_s = LOCK_TIMEOUT_S
        with contextlib.suppress(OSError):  # a read-only folder can still be read
            self.create()

    def create(self) -> None:
        """Create the missing subfolders.

        Raises:
            OSError: They cannot be created, or one is a link.
        """
        self._refuse_links()
        for folder in (self.encodings, self.incoming, self.quarantine, self.locks):
            folder.mkdir(parents=True, exist_ok=True)

    def path(self, key: str) -> Path:
        """Return the path of the file of an encoding.

        Raises:
            StoreError: `key` is not a key.
        """
        return self.encodings / file_name(key)

    @contextlib.contextmanager
    def tier_errors(self, operation: str) -> Iterator[None]:
        """Raise an `OSError` of the context as `TierUnavailable`, with the folder and the operation.

        The context is not entered if a subfolder is a link.
        """
        try:
            self._refuse_links()
            yield
        except OSError as error:
            reason = str(error.strerror or error)
            raise TierUnavailable(f"{self.root}: cannot {operation}: {reason}", reason) from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock for counting and moving files, which all processes share.

        After a timeout nothing waits for the lock, until it was free once.
        """
        lock = FileLock(self.root / "lock")
        try:
            lock.acquire(timeout=self._lock_timeout_s, poll_interval=_POLL_S)
        except Timeout as error:
            self._lock_timeout_s = 0.0
            raise TierUnavailable(f"{self.root}: another process held its lock for {LOCK_TIMEOUT_S:g} s") from error
        self._lock_timeout_s = LOCK_TIMEOUT_S
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def claimed(self, key: str, timeout_s: float, on_wait: OnWait) -> Iterator[bool]:
        """Hold the lock of a key. Yields False after the timeout, and True also if locks do not work here."""
        self.path(key)
        lock = FileLock(self.locks / f"{key}.lock", thread_local=False)  # another thread may release it
        deadline = time.monotonic() + timeout_s
        while not lock.is_locked:
            left_s = max(0.0, deadline - time.monotonic())
            try:
                self._refuse_links()
                lock.acquire(timeout=min(left_s, _WAIT_S), poll_interval=_POLL_S)
            except Timeout:
                if left_s <= _WAIT_S:
                    yield False
                    return
                on_wait()
            except OSError:
                yield True
                return
        try:
            yield True
        finally:
            lock.release()

    def scan(self) -> dict[str, os.stat_result]:
        """Return the status of every encoding by key. Foreign files are left out."""
        found = {}
        for name, status in _files(self.encodings):
            if (key := key_of(name)) is not None:
                found[key] = status
        return found

    def open_incoming(self, key: str, nbytes: int) -> Incoming:
        """Create a file in `incoming/` and allocate all its bytes. The caller holds the lock of the folder."""
        path = self.incoming / f"{key}.{os.getpid()}.{time.time_ns()}.tmp"
        incoming = Incoming(path, open_regular(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        try:
            fcntl.flock(incoming.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _allocate(incoming.descriptor, nbytes)
        except OSError:
            incoming.__exit__()
            raise
        return incoming

    def incoming_bytes(self) -> int:
        """Return the bytes of the files that are being written."""
        return sum(status.st_size for _, status in _files(self.incoming))

    def sweep(self) -> tuple[str, ...]:
        """Remove the files of killed writers and return their names. The caller holds the lock of the folder."""
        return tuple(name for name, _ in _files(self.incoming) if _remove_abandoned(self.incoming / name))

    def sweep_locks(self) -> None:
        """Remove the locks of keys that no process holds. A waiting process creates its lock again."""
        for name, _ in _files(self.locks):
            lock = FileLock(self.locks / name, timeout=0)
            with contextlib.suppress(Timeout), lock:
                (self.locks / name).unlink(missing_ok=True)

    def format_version(self) -> str | None:
        """Return the format version of all encodings here, or None if it is unknown."""
        try:
            return read_regular(self.root / _VERSION, _VERSION_BYTES).decode("ascii", errors="replace").strip()
        except (FileNotFoundError, NotRegular):
            return None

    def set_format_version(self, version: str) -> None:
        """Record the format version of all encodings here."""
        with atomic_write(self.root / _VERSION) as file:
            file.write(f"{version}\n".encode())

    def move_to_quarantine(self, path: Path, state: FileState, reason: str) -> bool:
        """Move a file to quarantine unless its state has changed; return whether it was moved."""
        with self.locked():
            if not os.path.lexists(path) or FileState.of(path.lstat()) != state:
                return False
            self.create()
            entry = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "file": path.name, "reason": reason}
            log = open_regular(self.quarantine / _LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            with os.fdopen(log, "a", encoding="utf-8") as lines:
                lines.write(json.dumps(entry) + "\n")
            path.rename(self.quarantine / f"{path.name}.{time.time_ns()}")
        return True

    def quarantined(self) -> list[tuple[str, os.stat_result]]:
        """Return the files in quarantine, oldest first."""
        found = [each for each in _files(self.quarantine) if each[0] != _LOG]
        return sorted(found, key=lambda each: each[1].st_ctime_ns)

    def empty_quarantine(self, needed_bytes: int) -> None:
        """Remove files from quarantine, oldest first, until `needed_bytes` are freed. The log stays."""
        for name, status in self.quarantined():
            if needed_bytes > 0:
                (self.quarantine / name).unlink(missing_ok=True)
                needed_bytes -= status.st_size

    def _refuse_links(self) -> None:
        refuse_links(self.encodings, self.incoming, self.quarantine, self.locks)


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


def open_header(path: Path, key: str) -> Header:
    """Return the header of a file.

    Raises:
        CorruptEncoding: The file does not match its key, or cannot be read.
        FileNotFoundError: The file was removed.
        OSError: The file system does not answer.
    """
    descriptor = _open(path)
    try:
        return _read_header(descriptor, path, key)[0]
    finally:
        os.close(descriptor)


def file_version(path: Path) -> str | None:
    """Return the format version of a file, or None if it is not an encoding or cannot be read."""
    try:
        descriptor = _open(path)
    except (CorruptEncoding, OSError):
        return None
    try:
        return format_version(os.pread(descriptor, head_bytes(os.pread(descriptor, 8, 0)), 0))
    finally:
        os.close(descriptor)


def open_encoding(path: Path, key: str, shape: KVShape | None = None, *, mapped: bool) -> tuple[Header, memoryview]:
    """Return the header of a file and its payload, memory-mapped or read. The checksum is not verified.

    The payload is writable for torch. Writes to it never reach the file. Nothing is allocated before the header
    confirms the size of the file and the shape of the KV; None accepts every shape.

    Raises:
        CorruptEncoding: The file does not match its key, has KV of another shape, or cannot be read.
        FileNotFoundError: The file was removed.
        OSError: The file system does not answer.
    """
    descriptor = _open(path)
    try:
        header, start = _read_header(descriptor, path, key)
        if shape is not None:
            check_shape(header, shape, str(path))
        read = _map_payload if mapped else _read_payload
        return header, read(descriptor, start, header.payload_bytes)
    except ValueError as error:  # from mmap: the file is shorter now
        raise CorruptEncoding(f"{path}: changed while it was opened: {error}") from error
    except OSError as error:
        _raise_if_unreadable(error, path)
        raise
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        try:
            return open_regular(path, os.O_RDONLY | _KEEP_TIMES)
        except PermissionError:  # O_NOATIME is for the owner only
            return open_regular(path)
    except NotRegular as error:
        raise CorruptEncoding(f"{path}: is not a file") from error
    except OSError as error:
        _raise_if_unreadable(error, path)
        raise


def _read_header(descriptor: int, path: Path, key: str) -> tuple[Header, int]:
    file_bytes = os.fstat(descriptor).st_size
    first = os.pread(descriptor, 8, 0)
    head = os.pread(descriptor, min(head_bytes(first), file_bytes), 0)
    return read_header(head, file_bytes, str(path), key)


def _map_payload(descriptor: int, start: int, payload_bytes: int) -> memoryview:
    mapping = mmap.mmap(descriptor, start + payload_bytes, access=mmap.ACCESS_COPY)  # shares the page cache
    return memoryview(mapping)[start:]


def _read_payload(descriptor: int, start: int, payload_bytes: int) -> memoryview:
    payload = memoryview(bytearray(payload_bytes))
    done = 0
    while done < payload_bytes:
        count = os.preadv(descriptor, [payload[done:]], start + done)
        if count == 0:
            raise ValueError(f"{payload_bytes - done} bytes of its payload are missing")
        done += count
    return payload


def _raise_if_unreadable(error: OSError, path: Path) -> None:
    if error.errno in _UNREADABLE:
        raise CorruptEncoding(f"{path}: cannot be read: {error.strerror}") from error


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield name and status of the regular files of a folder. The folder or files may disappear meanwhile."""
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                yield entry.name, status


def _remove_abandoned(path: Path) -> bool:
    """Remove a file in `incoming/` unless its writer is alive and holds its lock, or it is the file of another user."""
    try:
        descriptor = open_regular(path)
    except (FileNotFoundError, PermissionError, NotRegular):
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except (BlockingIOError, PermissionError):
        return False
    finally:
        os.close(descriptor)
    return True


def _allocate(descriptor: int, nbytes: int) -> None:
    """Allocate the bytes of a file. Without `posix_fallocate`, only its length is set, and a write may find no room."""
    os.ftruncate(descriptor, nbytes)
    if hasattr(os, "posix_fallocate"):  # macOS does not have it
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
