"""The remote tier: the files of encodings under any URL that fsspec knows, shared by machines.

Every operation, connecting included, has a timeout. After a timeout the URL is not used for a while.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

try:
    from fsspec import AbstractFileSystem
    from fsspec.core import url_to_fs
    from fsspec.implementations.memory import MemoryFileSystem
except ImportError as missing:
    raise ImportError("a remote store needs fsspec: pip install 'promptcache[remote]'") from missing

from promptcache.diagnostics import CorruptEncoding, StoreError, TierUnavailable
from promptcache.kv.files.blob_tier import BlobTier
from promptcache.kv.keys import file_name, key_of

MAX_FILE_BYTES = 8 * 2**30
"""Larger objects are corrupt and are not fetched: fetching one would fill the memory."""

PARALLEL_READS = 16
"""Number of encodings that are fetched at once."""

_ABANDONED_S = 3600.0  # a write takes less, and clocks of machines differ by less
_WRITTEN = re.compile(r"\.(\d+)\.tmp$")

_WRONG_URL = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
"""Errors of the system that mean a wrong URL. Others mean that the URL does not answer now."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False)
class _RemoteFolder:
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
    def open(url: str, options: Mapping[str, Any]) -> _RemoteFolder:
        """Open a file system. Many connect here. Listings are not cached, because other machines write, too."""
        files, root = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True, **options)
        lock = nullcontext() if _is_thread_safe(files) else threading.Lock()
        return _RemoteFolder(files, str(root).rstrip("/"), lock)

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"


class RemoteTier(BlobTier):
    """Encodings as files under a URL. It has no budget and no locks, so two machines may encode one module twice.

    Args:
        url: For example `s3://bucket/folder`.
        timeout_s: Timeout of each operation.
        retry_after_s: How long the URL is not used after a timeout or a failed connection.
        options: Options of the file system of fsspec, such as credentials.

    Raises:
        StoreError: The URL is wrong. A URL that does not answer now is accepted and connected to later.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 10.0,
        retry_after_s: float = 30.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._url, self._options = url, dict(options or {})
        self._name = _without_credentials(url).rstrip("/")
        self._timeout_s = timeout_s
        self._retry_after_s = retry_after_s
        self._paused_until, self._why_paused = 0.0, ""
        self._folder: _RemoteFolder | None = None
        try:
            self._run("open", _check_root)
        except TierUnavailable as fault:
            error = fault.__cause__
            is_open = self._folder is not None
            if isinstance(error, _WRONG_URL) or not (is_open or isinstance(error, OSError)):
                raise StoreError(f"cannot use this URL as a store: {str(error) or type(error).__name__}") from error
            self.opening_fault = fault

    def __str__(self) -> str:
        return self._name

    @property
    def max_parallel_reads(self) -> int:  # type: ignore[override]
        """Number of concurrent reads: 1 unless the file system is thread-safe."""
        folder = self._folder
        return PARALLEL_READS if folder is not None and _is_thread_safe(folder.files) else 1

    def read(self, key: str) -> bytes | None:
        """Fetch the file of `key` into memory.

        Raises:
            CorruptEncoding: It is too large, or no file.
        """
        name = file_name(key)
        return self._run("read", lambda folder: _fetch(folder, name, f"{self._name}/{name}"))

    def write(self, key: str, data: bytes) -> None:
        """Write a file atomically, unless there is one."""
        name = file_name(key)
        self._run("write", lambda folder: _write(folder, name, data))

    def probe(self) -> None:
        """Write and remove a small file."""
        name = f"incoming/probe.{os.getpid()}.{time.time_ns()}.tmp"
        self._run("write", lambda folder: _write_and_remove(folder, name))

    def delete(self, key: str) -> None:
        """Remove the file of `key`."""
        name = file_name(key)
        self._run("delete", lambda folder: _remove(folder, name))

    def keys(self) -> tuple[str, ...]:
        """Return the keys that have a file now."""
        return self._run("list", _list)

    def _run(self, what: str, operation: Callable[[_RemoteFolder], _T]) -> _T:
        """Run an operation in its own thread, which is abandoned at the timeout."""
        if time.monotonic() < self._paused_until:
            raise TierUnavailable(
                f"{self._name}: cannot {what}: {self._why_paused}; it is tried again after {self._retry_after_s:g} s",
                self._why_paused,
            )
        outcome: Future[_T] = Future()
        threading.Thread(target=self._work, args=(operation, outcome), daemon=True, name="promptcache remote").start()
        try:
            return outcome.result(self._timeout_s)
        except CorruptEncoding:
            raise
        except TimeoutError as error:
            self._folder = None  # its connection may never recover
            raise self._pause(what, f"no answer within {self._timeout_s:g} s") from error
        except Exception as error:  # each backend has errors of its own, without a common base class
            why = str(error) or type(error).__name__
            if self._folder is None:
                raise self._pause(what, why) from error
            raise TierUnavailable(f"{self._name}: cannot {what}: {why}", why) from error

    def _work(self, operation: Callable[[_RemoteFolder], _T], outcome: Future[_T]) -> None:
        try:
            folder = self._folder
            if folder is None:
                folder = self._folder = _RemoteFolder.open(self._url, self._options)
            with folder.lock:
                outcome.set_result(operation(folder))
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            outcome.set_exception(error)

    def _pause(self, what: str, why: str) -> TierUnavailable:
        """Stop using the URL for a while; return the error to raise."""
        self._paused_until, self._why_paused = time.monotonic() + self._retry_after_s, why
        return TierUnavailable(f"{self._name}: cannot {what}: {why}", why)


def _without_credentials(url: str) -> str:
    """Return a URL for messages, without `user:password@`."""
    return re.sub(r"(?<=//)[^/@]*@", "", url)


def _is_thread_safe(files: AbstractFileSystem) -> bool:
    """Return whether several threads may use a file system. Many that are not asynchronous have one connection."""
    return bool(files.async_impl) or isinstance(files, MemoryFileSystem)


def _renames(files: AbstractFileSystem) -> bool:
    """Return whether a file system can rename files. Object stores cannot, and their folders are only prefixes."""
    return type(files).mv is not AbstractFileSystem.mv


def _check_root(folder: _RemoteFolder) -> None:
    """Raise an error of the system if the folder of the store is a file or must not be used. It may be missing.

    Object stores have no folders, and may allow to read objects but not to ask for a folder.
    """
    if _renames(folder.files):
        with suppress(FileNotFoundError):
            if folder.files.info(folder.root)["type"] == "file":
                raise NotADirectoryError(f"{folder.root} is a file, not a folder")


def _fetch(folder: _RemoteFolder, name: str, source: str) -> bytes | None:
    try:
        info = folder.files.info(folder.path(name))
        if info["type"] != "file" or (info["size"] or 0) > MAX_FILE_BYTES:
            raise CorruptEncoding(f"{source}: is not a file of at most {MAX_FILE_BYTES} bytes")
        return bytes(folder.files.cat_file(folder.path(name)))
    except FileNotFoundError:
        return None


def _write(folder: _RemoteFolder, name: str, data: bytes) -> None:
    """Write a file atomically."""
    if folder.files.isfile(folder.path(name)):
        return
    if not _renames(folder.files):  # an object is written atomically
        folder.files.pipe_file(folder.path(name), data)
        return
    temporary = folder.path(f"incoming/{name}.{os.getpid()}.{time.time_ns()}.tmp")
    folder.files.makedirs(folder.path("incoming"), exist_ok=True)
    _sweep(folder)
    try:
        folder.files.pipe_file(temporary, data)
        folder.files.mv(temporary, folder.path(name))
    except BaseException:
        with suppress(OSError):
            folder.files.rm_file(temporary)
        raise


def _write_and_remove(folder: _RemoteFolder, name: str) -> None:
    if _renames(folder.files):
        folder.files.makedirs(folder.path("incoming"), exist_ok=True)
    folder.files.pipe_file(folder.path(name), b"probe")
    folder.files.rm_file(folder.path(name))


def _sweep(folder: _RemoteFolder) -> None:
    """Remove the files of writers that were killed. Each name has the time of its creation."""
    for path in folder.files.ls(folder.path("incoming"), detail=False):
        written = _WRITTEN.search(path)
        if written and time.time_ns() - int(written[1]) > _ABANDONED_S * 10**9:
            with suppress(OSError):
                folder.files.rm_file(path)


def _remove(folder: _RemoteFolder, name: str) -> None:
    with suppress(FileNotFoundError):
        if folder.files.isfile(folder.path(name)):
            folder.files.rm_file(folder.path(name))


def _list(folder: _RemoteFolder) -> tuple[str, ...]:
    try:
        entries = folder.files.ls(folder.root, detail=True)
    except FileNotFoundError:
        return ()
    keys = (key_of(entry["name"].rpartition("/")[2]) for entry in entries if entry["type"] == "file")
    return tuple(key for key in keys if key is not None)
