"""The folder of a disk tier: which files stand where, and how they come, go and are set aside without a trace of half
work.

    encodings/KEY.safetensors    one file per encoding; what stands here is whole
    incoming/                    files being written; each is locked by its writer while that lives
    pins/KEY                     empty; names what must not be evicted
    version                      the format version of all encodings, a number
    quarantine/                  what could not be served, and log.jsonl: when, what, why
    locks/KEY.lock, lock         held while an encoding is made, and while files are counted and moved

Comes in: names and bytes. Goes out: files. This file knows nothing of what is in them. POSIX only: it relies on
`flock` and on files that outlive their names.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from promptcache.atomic import atomic_write, publish
from promptcache.diagnostics import StoreError, TierUnavailable, shown
from promptcache.kv.files.names import file_name, key_of

LOCK_TIMEOUT_S = 60.0
_POLL_S = 0.005
_LOG = "log.jsonl"
_VERSION = "version"
_REPLACING = "replacing.tmp"


class Identity(NamedTuple):
    """What tells one state of a file from another."""

    device: int
    inode: int
    nbytes: int
    modified_ns: int

    @staticmethod
    def of(status: os.stat_result) -> Identity:
        """Return the identity of the file with this status."""
        return Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(slots=True)
class Incoming:
    """A file that is being written; it is gone when the context ends, unless it was published."""

    path: Path
    descriptor: int

    def __enter__(self) -> Incoming:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        os.close(self.descriptor)

    def fill(self, parts: Iterable[bytes | memoryview]) -> None:
        """Write everything and wait until it is on the disk."""
        for part in parts:
            left = memoryview(part)
            while left:
                left = left[os.write(self.descriptor, left) :]
        os.fsync(self.descriptor)

    def publish(self, target: Path) -> None:
        """Give the file its name."""
        publish(self.path, target)


class Folder:
    """A tier's folder. Its methods raise `TierUnavailable` where the file system refuses."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.encodings, self.incoming, self.pins, self.quarantine, self.locks = (
            root / name for name in ("encodings", "incoming", "pins", "quarantine", "locks")
        )
        try:
            if root.exists() and not root.is_dir():
                raise StoreError(f"{root}: is not a folder")
        except OSError as error:
            raise StoreError(f"{shown(str(root))} cannot be a folder: {error.strerror}") from error
        with contextlib.suppress(OSError):  # may be read-only, and still be read
            self.make()

    def make(self) -> None:
        """Make the folders that are not there."""
        for folder in (self.encodings, self.incoming, self.pins, self.quarantine, self.locks):
            folder.mkdir(parents=True, exist_ok=True)

    def path(self, key: str) -> Path:
        """Return where an encoding stands.

        Raises:
            StoreError: This is no key.
        """
        return self.encodings / file_name(key)

    @contextlib.contextmanager
    def refusing(self, deed: str) -> Iterator[None]:
        """Say what the file system refuses as `TierUnavailable`."""
        try:
            yield
        except OSError as error:
            raise TierUnavailable(f"{self.root}: cannot {deed}: {error.strerror or error}") from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only one, of all processes, that counts or moves files."""
        lock = FileLock(self.root / "lock")
        try:
            lock.acquire(timeout=LOCK_TIMEOUT_S, poll_interval=_POLL_S)
        except Timeout as error:
            raise TierUnavailable(f"{self.root}: another process held its lock for {LOCK_TIMEOUT_S:g} s") from error
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def claimed(self, key: str, timeout_s: float) -> Iterator[bool]:
        """Hold the lock of a key; yields False after the time-out, and where no lock can be had at all."""
        self.path(key)
        lock = FileLock(self.locks / f"{key}.lock")
        try:
            lock.acquire(timeout=timeout_s, poll_interval=_POLL_S)
        except (Timeout, OSError):
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def scan(self) -> dict[str, os.stat_result]:
        """Return the encodings that stand here, by key; what has another name or is no file is none."""
        found = {}
        for name, status in _files(self.encodings):
            if (key := key_of(name)) is not None:
                found[key] = status
        return found

    def pinned(self) -> frozenset[str]:
        """Return the keys that have a pin."""
        return frozenset(name for name, _ in _files(self.pins))

    def open_incoming(self, key: str, nbytes: int) -> Incoming:
        """Make a file that already takes all the room that it will need; call this with the folder locked."""
        path = self.incoming / f"{key}.{os.getpid()}.{time.time_ns()}.tmp"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        incoming = Incoming(path, os.open(path, flags, 0o666))
        try:
            fcntl.flock(incoming.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _allocate(incoming.descriptor, nbytes)
        except OSError:
            incoming.__exit__()
            raise
        return incoming

    def replace(self, name: str, data: bytes) -> None:
        """Let a small file beside the folders have this content, all at once; call this with the folder locked."""
        temporary = self.root / _REPLACING
        temporary.unlink(missing_ok=True)
        with atomic_write(self.root / name, temporary=temporary) as file:
            file.write(data)

    def sweep(self) -> tuple[str, ...]:
        """Remove what writers left that are no more, and return its names; call this with the folder locked."""
        left = [name for name, _ in _files(self.incoming) if _remove_abandoned(self.incoming / name)]
        replacing = self.root / _REPLACING
        if replacing.exists():  # its writer would hold the lock
            replacing.unlink()
            left.append(_REPLACING)
        return tuple(left)

    def sweep_locks(self) -> None:
        """Remove the locks of keys that are not held; a process that waits for one makes it again."""
        for name, _ in _files(self.locks):
            lock = FileLock(self.locks / name, timeout=0)
            with contextlib.suppress(Timeout), lock:
                (self.locks / name).unlink(missing_ok=True)

    def incoming_bytes(self) -> int:
        """Bytes of the files that are being written."""
        return sum(status.st_size for _, status in _files(self.incoming))

    def quarantined(self) -> list[tuple[str, os.stat_result]]:
        """Return the files that were set aside, the oldest first."""
        aside = [each for each in _files(self.quarantine) if each[0] != _LOG]
        return sorted(aside, key=lambda each: each[1].st_ctime_ns)

    def empty_quarantine(self, needed_bytes: int) -> None:
        """Remove files that were set aside until so much is freed; the log stays."""
        for name, status in self.quarantined():
            if needed_bytes > 0:
                (self.quarantine / name).unlink(missing_ok=True)
                needed_bytes -= status.st_size

    def format_version(self) -> str | None:
        """Return the format version that all encodings here have; None if that is not known."""
        try:
            return (self.root / _VERSION).read_text("ascii", errors="replace").strip()
        except FileNotFoundError:
            return None

    def note_format_version(self, version: str) -> None:
        """Note that all encodings here have this format version."""
        with atomic_write(self.root / _VERSION) as file:
            file.write(f"{version}\n".encode())

    def set_aside(self, path: Path, identity: Identity, reason: str) -> bool:
        """Move a file to the quarantine, if it is still the one that was found bad; return whether it was."""
        with self.locked():
            if not os.path.lexists(path) or Identity.of(path.lstat()) != identity:
                return False
            self.make()
            path.rename(self.quarantine / f"{path.name}.{time.time_ns()}")
            entry = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "file": path.name, "reason": reason}
            with (self.quarantine / _LOG).open("a", encoding="utf-8") as log:
                log.write(json.dumps(entry) + "\n")
        return True


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the regular files of a folder that may be missing; those that vanish meanwhile are left out."""
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
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _allocate(descriptor: int, nbytes: int) -> None:
    """Take room now; where the system cannot, only the length is taken, and the disk may turn out to be full later."""
    os.ftruncate(descriptor, nbytes)
    if hasattr(os, "posix_fallocate"):  # macOS has none
        try:
            os.posix_fallocate(descriptor, 0, nbytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
