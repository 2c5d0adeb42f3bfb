"""The folder of a disk tier: the names of its files, its locks, and safe ways to open and add files.

    encodings/KEY.safetensors    one complete file per encoding
    incoming/                    files being written, each locked by its writer
    locks/KEY.lock, lock         held while an encoding is computed, and while files are counted and removed

POSIX only: the folder relies on `flock`, and on open files that outlive their names.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from promptcache.atomic import NotRegular, open_regular, publish, refuse_links
from promptcache.diagnostics import CorruptEncoding, StoreError, TierUnavailable, shown
from promptcache.kv.files.format import Header, head_bytes, read_header
from promptcache.kv.keys import file_name, key_of

LOCK_TIMEOUT_S = 10.0
_POLL_S = 0.005

_UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO, errno.ENOMEM)
"""Errors of one file, which may be too large for memory. Other errors concern the whole file system."""


class StoreFolder:
    """The folder of a disk tier. Its methods raise `OSError`, or `TierUnavailable` if a lock is not available."""

    def __init__(self, root: Path) -> None:
        try:
            self.root = root.absolute()  # the program may change its working directory
            if self.root.exists() and not self.root.is_dir():
                raise StoreError(f"store '{root}' is not a folder; name another path")
        except OSError as error:
            raise StoreError(f"store {shown(str(root))} cannot be a folder: {error.strerror}") from error
        self._parts = self.encodings, self.incoming, self.locks = tuple(
            self.root / name for name in ("encodings", "incoming", "locks")
        )
        self._lock_timeout_s = LOCK_TIMEOUT_S
        with contextlib.suppress(OSError):  # a read-only folder can still be read
            self.create()

    def create(self) -> None:
        """Create the missing subfolders.

        Raises:
            OSError: They cannot be created, or one is a link.
        """
        refuse_links(*self._parts)
        for folder in self._parts:
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
            refuse_links(*self._parts)
            yield
        except OSError as error:
            reason = str(error.strerror or error)
            raise TierUnavailable(f"{self.root}: cannot {operation}: {reason}", reason) from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock for counting and removing files, which all processes share.

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

    def try_lock(self, key: str, timeout_s: float) -> Callable[[], object] | None:
        """Lock a key and return what unlocks it, or None after the timeout. Without working locks, return at once."""
        lock = FileLock(self.locks / f"{key}.lock", thread_local=False)  # another thread may release it
        try:
            refuse_links(*self._parts)
            lock.acquire(timeout=timeout_s, poll_interval=_POLL_S)
        except Timeout:
            return None
        except OSError:
            return lambda: None
        return lock.release

    def scan(self) -> dict[str, os.stat_result]:
        """Return the status of every encoding by key. Foreign files are left out."""
        found = {}
        for name, status in _files(self.encodings):
            if (key := key_of(name)) is not None:
                found[key] = status
        return found

    @contextlib.contextmanager
    def incoming_file(self, key: str, nbytes: int) -> Iterator[tuple[Path, int]]:
        """Create a file of `nbytes` in `incoming/`, locked as long as the context; yield its path and descriptor.

        The file is removed at the end, unless it was renamed. The caller holds the lock of the folder when it enters.
        """
        path = self.incoming / f"{key}.{os.getpid()}.{time.time_ns()}.tmp"
        descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, nbytes)  # counts from now on
            yield path, descriptor
        finally:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            os.close(descriptor)

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


def fill(path: Path, descriptor: int, data: bytes, target: Path) -> None:
    """Write and sync the whole content of an incoming file, and rename it to its final name."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
    os.fsync(descriptor)
    publish(path, target)


def open_header(path: Path, key: str) -> Header:
    """Return the header of a file. Its payload is not read.

    Raises:
        CorruptEncoding: The file does not match its key, or cannot be read.
        FileNotFoundError: The file was removed.
        OSError: The file system does not answer.
    """
    with _opened(path) as descriptor:
        return _header(descriptor, path, key)


def open_file(path: Path, key: str) -> tuple[Header, memoryview]:
    """Return the header and the content of a file, memory-mapped where the file system can do that.

    The content is writable for torch. Writes to it never reach the file. Nothing is allocated before the header
    confirms the size of the file. Errors are those of `open_header`.
    """
    with _opened(path) as descriptor:
        header = _header(descriptor, path, key)
        try:
            return header, memoryview(mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY))  # shares the page cache
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise
        with os.fdopen(os.dup(descriptor), "rb") as file:  # this file system cannot map files
            return header, memoryview(bytearray(file.read()))


def _header(descriptor: int, path: Path, key: str) -> Header:
    head = os.pread(descriptor, head_bytes(os.pread(descriptor, 8, 0)), 0)
    return read_header(head, os.fstat(descriptor).st_size, str(path), key)[0]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        descriptor = open_regular(path)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    except NotRegular as error:
        raise CorruptEncoding(f"{path}: is not a file") from error
    except OSError as error:
        if error.errno in _UNREADABLE:
            raise CorruptEncoding(f"{path}: cannot be read: {error.strerror}") from error
        raise


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
