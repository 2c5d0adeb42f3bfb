"""The tier of files: encodings in a folder, or under any URL that fsspec knows.

Processes share a folder: it has locks and a budget, and its files are mapped into memory. Machines share a URL: each
operation on it has a timeout, after which the URL is not used for a while. The files are the index, so nothing has to
be rebuilt after a crash: every file in `encodings/` is complete.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from filelock import FileLock, Timeout
from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs
from fsspec.implementations.memory import MemoryFileSystem

from promptcache.atomic import refuse_links
from promptcache.diagnostics import CorruptEncoding, StoreError, TierUnavailable, shown
from promptcache.kv.codec import StoredEncoding
from promptcache.kv.files.blob_tier import BlobTier
from promptcache.kv.files.format import unpack
from promptcache.kv.files.local import LocalFiles, expand_home, open_file
from promptcache.kv.keys import file_name, key_of
from promptcache.kv.types import Tier
from promptcache.locks import new_lock

LOCK_TIMEOUT_S = 10.0
_POLL_S = 0.005

MAX_FILE_BYTES = 8 * 2**30
"""Larger objects under a URL are corrupt and are not fetched: fetching one would fill the memory."""

PARALLEL_READS = 16
"""Number of encodings that are fetched from a URL at once."""

_ABANDONED_S = 3600.0  # a write to a URL takes less, and clocks of machines differ by less
_WRITTEN = re.compile(r"\.(\d+)\.tmp$")

_WRONG_URL = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
"""Errors of the system that mean a wrong URL. Others mean that the URL does not answer now."""

_T = TypeVar("_T")


class VerifyResult(NamedTuple):
    """Result of `FileTier.verify_all` for one file.

    Attributes:
        name: Name of the file.
        nbytes: Size of the file.
        fault: Why the file cannot be served. None for a good file.
    """

    name: str
    nbytes: int
    fault: str | None


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """An open file system and the folder of the store in it.

    Attributes:
        files: The file system.
        root: Path of the folder.
        lock: Held during each operation if the file system is not thread-safe.
    """

    files: AbstractFileSystem
    root: str
    lock: AbstractContextManager[Any]

    @staticmethod
    def of_url(url: str, options: Mapping[str, Any]) -> _Place:
        """Open a URL. Many connect here. Listings are not cached, because other machines write, too."""
        files, root = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True, **options)
        return _Place(files, str(root).rstrip("/"), nullcontext() if _is_thread_safe(files) else new_lock())

    @property
    def is_local(self) -> bool:
        return isinstance(self.files, LocalFiles)

    @property
    def renames(self) -> bool:
        """Whether the file system can rename files. Object stores cannot, and their folders are only prefixes."""
        return type(self.files).mv is not AbstractFileSystem.mv

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def check(self) -> None:
        """Check that no subfolder is a link: the files behind it are not those of the store."""
        if self.is_local:
            refuse_links(*(Path(self.path(part)) for part in ("encodings", "incoming", "locks")))

    def check_root(self) -> None:
        """Check that the root is no file. It may be missing, and an object store is not asked."""
        if self.renames:
            with suppress(FileNotFoundError):
                if self.files.info(self.root)["type"] == "file":
                    raise NotADirectoryError(f"{self.root} is a file, not a folder")

    def make_folders(self) -> None:
        if self.renames:
            for part in ("encodings", "incoming", "locks")[: 3 if self.is_local else 2]:
                self.files.makedirs(self.path(part), exist_ok=True)

    def list(self, part: str) -> tuple[dict[str, Any], ...]:
        """Return the entries of a subfolder, with their names in it."""
        try:
            entries = self.files.ls(self.path(part), detail=True)
        except FileNotFoundError:
            return ()
        return tuple({**entry, "name": entry["name"].rpartition("/")[2]} for entry in entries)

    def encodings(self) -> dict[str, dict[str, Any]]:
        """Return the entries of all encodings by key. Foreign files are left out."""
        found = ((key_of(entry["name"]), entry) for entry in self.list("encodings") if entry["type"] == "file")
        return {key: entry for key, entry in found if key is not None}

    def read(self, name: str, source: str, mark_use: bool) -> bytes | BinaryIO | None:
        path = self.path(f"encodings/{name}")
        if self.is_local:
            return open_file(path, mark_use=mark_use)
        try:
            info = self.files.info(path)
            if info["type"] != "file" or (info["size"] or 0) > MAX_FILE_BYTES:
                raise CorruptEncoding(f"{source}: is not a file of at most {MAX_FILE_BYTES} bytes")
            return bytes(self.files.cat_file(path))
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically."""
        path = self.path(f"encodings/{name}")
        if not self.renames:  # an object is written atomically
            self.files.pipe_file(path, data)
            return
        temporary = self.path(f"incoming/{name}.{os.getpid()}.{time.time_ns()}.tmp")
        try:
            self.files.pipe_file(temporary, data)
            self.files.mv(temporary, path)
        except BaseException:
            with suppress(Exception):
                self.files.rm_file(temporary)
            raise

    def delete(self, name: str) -> None:
        path = self.path(f"encodings/{name}")
        with suppress(FileNotFoundError):
            if self.files.lexists(path):
                self.files.rm_file(path)

    def sweep(self) -> tuple[str, ...]:
        """Remove the files of killed writers and return their names. The caller holds the lock of a folder.

        Writers to a folder hold its lock. For a URL, the name of a file has the time of its creation.
        """
        removed = []
        for entry in self.list("incoming"):
            written = _WRITTEN.search(entry["name"]) if entry["type"] == "file" else None
            if written and (self.is_local or time.time_ns() - int(written[1]) > _ABANDONED_S * 10**9):
                with suppress(OSError):
                    self.files.rm_file(self.path(f"incoming/{entry['name']}"))
                    removed.append(entry["name"])
        return tuple(removed)


class FileTier(BlobTier):
    """Encodings as files of a folder or under a URL.

    Args:
        location: Path of a folder, created if it is missing, or a URL such as `s3://bucket/folder`. A read-only folder
            is only read. A URL has no locks, so two machines may encode one module twice.
        budget_bytes: Limit for the files of a folder. The files that were used longest ago, by any process, are evicted
            before a file is written. None: no limit.
        timeout_s: Timeout of each operation on a URL.
        retry_after_s: How long a URL is not used after a timeout or a failed connection.
        options: Options of the file system of fsspec, such as credentials.

    Raises:
        StoreError: The location is wrong. A URL that does not answer now is accepted and connected to later.
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        *,
        budget_bytes: int | None = None,
        timeout_s: float = 10.0,
        retry_after_s: float = 30.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._budget_bytes = budget_bytes
        self._timeout_s, self._retry_after_s = timeout_s, retry_after_s
        self._lock_timeout_s = LOCK_TIMEOUT_S
        self._paused_until, self._why_paused = 0.0, ""
        self._place: _Place | None = None
        self.has_locks = "://" not in os.fspath(location)
        if self.has_locks:
            root = expand_home(location)
            self.kind, self._name = Tier.DISK, str(root)
            try:
                root = root.absolute()  # the program may change its working directory
                is_folder = root.is_dir() or not root.exists()
            except OSError as error:
                reason = f"cannot be a folder: {error.strerror}"
                raise StoreError(f"store {shown(os.fspath(location))} {reason}") from error
            if not is_folder:
                raise StoreError(f"store '{location}' is not a folder; name another path")
            self._connect = partial(_Place, LocalFiles(), str(root), nullcontext())
            with suppress(TierUnavailable):
                self._run("write", _Place.make_folders)
                if budget_bytes is not None:
                    self.gc()
        else:
            self._name = re.sub(r"(?<=//)[^/@]*@", "", str(location)).rstrip("/")  # without user:password@
            self._connect = partial(_Place.of_url, str(location), options or {})
            try:
                self._run("open", _Place.check_root)
            except TierUnavailable as fault:
                cause = fault.__cause__
                if isinstance(cause, _WRONG_URL) or not (self._place is not None or isinstance(cause, OSError)):
                    raise StoreError(f"cannot use this URL as a store: {str(cause) or type(cause).__name__}") from cause
                self.opening_fault = fault

    def __str__(self) -> str:
        return self._name

    @property
    def max_parallel_reads(self) -> int:  # type: ignore[override]
        """Number of concurrent reads: 1 for a folder, and for a file system that is not thread-safe."""
        place = self._place
        return PARALLEL_READS if place is not None and _is_thread_safe(place.files) else 1

    def read(self, key: str, *, mark_use: bool = True) -> bytes | BinaryIO | None:
        """Return the open file of `key` in a folder, or its content under a URL.

        Raises:
            CorruptEncoding: It is no file, cannot be read, or is too large.
        """
        name = file_name(key)
        return self._run("read", lambda place: place.read(name, f"{self}/{name}", mark_use))

    def write(self, key: str, data: bytes) -> None:
        """Write a file atomically. Above the budget nothing is written."""
        name = file_name(key)

        def write(place: _Place) -> None:
            place.make_folders()
            with self._locked(place):
                place.sweep()
                if self._make_room(place, len(data)):
                    place.write(name, data)

        self._run("write", write)

    def probe(self) -> None:
        """Write and remove a small file."""

        def probe(place: _Place) -> None:
            path = place.path(f"incoming/probe.{os.getpid()}.{time.time_ns()}.tmp")
            place.make_folders()
            with self._locked(place):
                place.files.pipe_file(path, b"probe")
                place.files.rm_file(path)

        self._run("write", probe)

    def delete(self, key: str) -> None:
        """Remove the file of `key`."""
        name = file_name(key)
        self._run("delete", lambda place: place.delete(name))

    def keys(self) -> tuple[str, ...]:
        """Return the keys that have a file now."""
        return tuple(self._run("list", _Place.encodings))

    def nbytes(self) -> int:
        """Return the bytes of all encodings in a folder, and 0 for a URL."""
        return sum(nbytes for nbytes, _ in self.files().values()) if self.has_locks else 0

    def try_lock(self, key: str, timeout_s: float) -> Callable[[], object] | None:
        """Lock `key` in a folder against other threads and processes. The lock ends with the process that holds it."""

        def lock(place: _Place) -> Callable[[], object] | None:
            lock = FileLock(place.path(f"locks/{key}.lock"), thread_local=False)  # another thread may release it
            try:
                lock.acquire(timeout=timeout_s, poll_interval=_POLL_S)
            except Timeout:
                return None
            return lock.release

        return self._run("lock", lock)

    def files(self) -> Mapping[str, tuple[int, float]]:
        """Return the size of each encoding's file in a folder and the time of its last use (Unix time), by key."""
        return {key: (entry["size"], entry["mtime"]) for key, entry in self._run("list", _Place.encodings).items()}

    def read_unverified(self, key: str) -> StoredEncoding | None:
        """Return the encoding of a file without reading its tensors, or None if there is no file.

        Raises:
            CorruptEncoding: The file does not match its key.
        """
        data = self.read(key, mark_use=False)
        return None if data is None else unpack(data, f"{self}/{key}", key, verify=False)

    def verify_all(self) -> Iterator[VerifyResult]:
        """Read every file with the name of an encoding and yield a result for each. Nothing is removed."""
        for entry in sorted(self._run("list", lambda place: place.list("encodings")), key=lambda entry: entry["name"]):
            key, fault = key_of(entry["name"]), None
            try:
                if key is None or (data := self.read(key, mark_use=False)) is None:
                    continue  # a foreign file, or another process has evicted it
                unpack(data, f"{self}/{key}", key)
            except CorruptEncoding as error:
                fault = str(error)
            yield VerifyResult(entry["name"], entry["size"], fault)

    def gc(self) -> tuple[str, ...]:
        """Remove what killed processes left, locks too, and evict until the budget holds.

        Returns:
            Names of the unfinished files of killed writers.
        """

        def collect(place: _Place) -> tuple[str, ...]:
            with self._locked(place):
                for entry in place.list("locks"):  # a waiting process creates its lock again
                    path = Path(place.path(f"locks/{entry['name']}"))
                    with suppress(Timeout), FileLock(path, timeout=0):
                        path.unlink(missing_ok=True)
                removed = place.sweep()
                self._make_room(place, 0)
                return removed

        return self._run("clean up", collect)

    def _make_room(self, place: _Place, nbytes: int) -> bool:
        """Evict until `nbytes` more fit. If they cannot fit, evict nothing and return False.

        The files are counted each time, because other processes write and remove them. The caller holds the lock.
        """
        if self._budget_bytes is None:
            return True
        if nbytes > self._budget_bytes:
            return False
        found = place.encodings()
        excess = sum(entry["size"] for entry in found.values()) + nbytes - self._budget_bytes
        for key in sorted(found, key=lambda key: float(found[key]["mtime"])):
            if excess <= 0:
                break
            place.delete(file_name(key))  # mapped files stay readable
            excess -= found[key]["size"]
        return True

    @contextmanager
    def _locked(self, place: _Place) -> Iterator[None]:
        """Hold the lock of a folder, under which its files are counted, written and evicted.

        After a timeout nothing waits for the lock, until it was free once.
        """
        if not place.is_local:
            yield
            return
        lock = FileLock(place.path("lock"))
        try:
            lock.acquire(timeout=self._lock_timeout_s, poll_interval=_POLL_S)
        except Timeout as error:
            self._lock_timeout_s = 0.0
            raise TierUnavailable(f"{self}: another process held its lock for {LOCK_TIMEOUT_S:g} s") from error
        self._lock_timeout_s = LOCK_TIMEOUT_S
        try:
            yield
        finally:
            lock.release()

    def _run(self, what: str, operation: Callable[[_Place], _T]) -> _T:
        """Run an operation: on a URL in a thread of its own, which is abandoned at the timeout."""
        if time.monotonic() < self._paused_until:
            raise TierUnavailable(
                f"{self}: cannot {what}: {self._why_paused}; it is tried again after {self._retry_after_s:g} s",
                self._why_paused,
            )
        outcome: Future[_T] = Future()
        if self.has_locks:
            self._work(operation, outcome)
        else:
            name = "promptcache remote"
            threading.Thread(target=self._work, args=(operation, outcome), daemon=True, name=name).start()
        try:
            return outcome.result(self._timeout_s)
        except (CorruptEncoding, TierUnavailable):
            raise
        except TimeoutError as error:
            self._place = None  # its connection may never recover
            raise self._pause(what, f"no answer within {self._timeout_s:g} s") from error
        except Exception as error:  # each backend has errors of its own, without a common base class
            why = str(getattr(error, "strerror", None) or error) or type(error).__name__
            if self._place is None:
                raise self._pause(what, why) from error
            raise TierUnavailable(f"{self}: cannot {what}: {why}", why) from error

    def _work(self, operation: Callable[[_Place], _T], outcome: Future[_T]) -> None:
        try:
            place = self._place
            if place is None:
                place = self._place = self._connect()
            place.check()
            with place.lock:
                outcome.set_result(operation(place))
        except BaseException as error:  # noqa: BLE001 - raised again where the result is waited for
            outcome.set_exception(error)

    def _pause(self, what: str, why: str) -> TierUnavailable:
        """Stop using the URL for a while; return the error to raise."""
        self._paused_until, self._why_paused = time.monotonic() + self._retry_after_s, why
        return TierUnavailable(f"{self}: cannot {what}: {why}", why)


def _is_thread_safe(files: AbstractFileSystem) -> bool:
    """Return whether several threads may use a file system. Many that are not asynchronous have one connection."""
    return bool(files.async_impl) or isinstance(files, MemoryFileSystem)
