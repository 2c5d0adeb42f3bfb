"""The remote tier: the files of the disk tier under any URL that fsspec knows, shared by machines.

Every file is verified at every read, and a corrupt one is moved to `quarantine/`. Every operation, connecting included,
has a timeout. After a timeout the URL is not used for a while.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

try:
    from fsspec import AbstractFileSystem
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.implementations.memory import MemoryFileSystem
except ImportError as missing:
    raise ImportError("a remote store needs fsspec: pip install 'promptcache[remote]'") from missing

from promptcache.atomic import atomic_write, read_regular, refuse_links
from promptcache.diagnostics import CorruptEncoding, StoreError, TierUnavailable
from promptcache.kv.codec import StoredEncoding
from promptcache.kv.files.blob_tier import BlobTier, signature_folder
from promptcache.kv.files.format import check_payload, check_shape, pack, read_header, unpack
from promptcache.kv.files.lease import LEASE_S, Lease
from promptcache.kv.keys import file_name, key_of
from promptcache.kv.store import OnWait, Tier, go_on
from promptcache.kv.types import KVShape

MAX_FILE_BYTES = 8 * 2**30
"""Larger objects are corrupt and are not fetched: fetching one would fill the memory."""

PARALLEL_READS = 16
"""Number of encodings that are fetched at once."""

_CLAIM_BYTES = 4096  # a lease has about 150

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
    """Encodings as files under a URL. It has no budget, so nothing is evicted.

    A claim is a lease: a file in `claims/` that its holder renews. Where the file system creates files exclusively
    (`s3fs`, `gcsfs` and `adlfs` with their own services, `file://`), at most one replica holds a claim. Elsewhere two
    replicas that claim at the same moment may both hold it: both encode then, which costs time and changes no answer.

    Args:
        url: For example `s3://bucket/folder` or `file:///shared/folder`.
        timeout_s: Timeout of each operation.
        retry_after_s: How long the URL is not used after a timeout or a failed connection.
        lease_s: Length of a lease. A claim whose holder has died ends after this time.
        options: Options of the file system of fsspec, such as credentials.

    Raises:
        StoreError: The URL is wrong. A URL that does not answer now is accepted and connected to later.
    """

    kind = Tier.REMOTE

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 10.0,
        retry_after_s: float = 30.0,
        lease_s: float = LEASE_S,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._url, self._options = url, dict(options or {})
        self._name = _without_credentials(url).rstrip("/")
        self._timeout_s = timeout_s
        self._retry_after_s = retry_after_s
        self._lease_s = lease_s
        self._paused_until, self._why_paused = 0.0, ""
        self._bad: dict[str, Hashable] = {}  # corrupt objects that could not be moved to quarantine
        self._folder: _RemoteFolder | None = None
        self._below = ""  # the path of this tier in that folder
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

    def read(self, key: str, shape: KVShape | None = None) -> StoredEncoding | None:
        """Fetch the encoding of `key` into memory."""
        name = file_name(key)
        fetched = self._run("read", lambda folder: _fetch(folder, name))
        if fetched is None or self._bad.get(key) == fetched[0]:
            return None
        state, data = fetched
        source = f"{self._name}/{name}"
        try:
            if data is None:
                raise CorruptEncoding(f"{source}: is not a file of at most {MAX_FILE_BYTES} bytes")
            header, start = read_header(data, len(data), source, key)
            if shape is not None:
                check_shape(header, shape, source)
            payload = memoryview(bytearray(memoryview(data)[start:]))
            check_payload(header, payload, source)
        except CorruptEncoding as error:
            self._quarantine(key, state, error)
            raise
        self._bad.pop(key, None)
        return unpack(header, payload)

    def write(self, stored: StoredEncoding) -> bool:
        """Write an encoding atomically. The result is always True, because there is no budget."""
        name = file_name(stored.recipe.key)
        exists = self._run("write", lambda folder: bool(folder.files.isfile(folder.path(name))))
        if exists and stored.recipe.key not in self._bad:
            return True
        head, payload = pack(stored)
        data = b"".join((head, *payload))
        self._run("write", lambda folder: _write(folder, name, data))
        self._bad.pop(stored.recipe.key, None)
        return True

    def probe(self) -> None:
        """Write and remove a small file."""
        name = f"incoming/probe.{os.getpid()}.{time.time_ns()}.tmp"
        self._run("write", lambda folder: _write_and_remove(folder, name))

    def delete(self, key: str) -> bool:
        """Remove the object of `key`."""
        name = file_name(key)
        return self._run("delete", lambda folder: _remove(folder, name))

    def keys(self) -> Iterator[str]:
        """Yield the keys that have an object now, without those of known corrupt objects."""
        yield from (key for key in self._run("list", _list) if key not in self._bad)

    def nbytes(self) -> int:
        """Return the bytes of all encodings."""
        return sum(self._run("list", _list).values())

    def signatures(self, fingerprint: str) -> RemoteTier:
        """Return the tier in `signatures/` for a fingerprint. It uses the same connection."""
        tier = copy(self)
        tier._below = f"/{signature_folder(fingerprint)}"
        tier._name, tier._bad = f"{self._name}{tier._below}", {}
        return tier

    def claim(self, key: str, timeout_s: float, on_wait: OnWait = go_on) -> AbstractContextManager[bool]:
        """Return a context in which no other replica computes `key`. A claim ends at the latest with its lease."""
        file_name(key)
        return self._claimed(key, timeout_s, on_wait)

    @contextmanager
    def _claimed(self, key: str, timeout_s: float, on_wait: OnWait) -> Iterator[bool]:
        lease = Lease(_ClaimFiles(self._run), key, self._lease_s)
        if not lease.wait(timeout_s, on_wait):
            yield False
            return
        with lease.renewed():
            yield True

    def _quarantine(self, key: str, state: Hashable, fault: CorruptEncoding) -> None:
        try:
            self._run("quarantine", lambda folder: _move_to_quarantine(folder, file_name(key), state, str(fault)))
        except TierUnavailable as error:
            fault.add_note(f"It could not be moved to quarantine and is ignored from now on: {error}")
            self._bad[key] = state

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
            if isinstance(folder.files, LocalFileSystem) and operation is not _check_root:
                _refuse_links(folder.root, self._below)
            with folder.lock:
                outcome.set_result(operation(replace(folder, root=f"{folder.root}{self._below}")))
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            outcome.set_exception(error)

    def _pause(self, what: str, why: str) -> TierUnavailable:
        """Stop using the URL for a while; return the error to raise."""
        self._paused_until, self._why_paused = time.monotonic() + self._retry_after_s, why
        return TierUnavailable(f"{self._name}: cannot {what}: {why}", why)


class _RunOnFolder(Protocol):
    def __call__(self, what: str, operation: Callable[[_RemoteFolder], _T]) -> _T: ...


class _ClaimFiles:
    """The files in `claims/`, as leases use them."""

    def __init__(self, run: _RunOnFolder) -> None:
        self._run = run

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""
        return self._run("claim", lambda folder: _content(folder, _claim(folder, name)))

    def create(self, name: str, content: bytes) -> bool:
        """Create a file and return True, or return False if it exists."""
        return self._run("claim", lambda folder: _create(folder, _claim(folder, name), content))

    def replace(self, name: str, content: bytes) -> None:
        """Write a file."""
        self._run("renew a claim", lambda folder: _overwrite(folder, _claim(folder, name), content))

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        self._run("release a claim", lambda folder: _remove_file(folder, _claim(folder, name)))


def _without_credentials(url: str) -> str:
    """Return a URL for messages, without `user:password@`."""
    return re.sub(r"(?<=//)[^/@]*@", "", url)


def _is_thread_safe(files: AbstractFileSystem) -> bool:
    """Return whether several threads may use a file system. Many that are not asynchronous have one connection."""
    return bool(files.async_impl) or isinstance(files, LocalFileSystem | MemoryFileSystem)


def _renames(files: AbstractFileSystem) -> bool:
    """Return whether a file system can rename files. Object stores cannot, and their folders are only prefixes."""
    return type(files).mv is not AbstractFileSystem.mv


def _refuse_links(root: str, below: str) -> None:
    """Check that nothing between the root of a local folder and its files is a link."""
    inside = Path(root + below)
    refuse_links(
        *(inside / name for name in ("incoming", "quarantine", "claims")),
        *(each for each in (inside, *inside.parents) if each.is_relative_to(root) and each != Path(root)),
    )


def _check_root(folder: _RemoteFolder) -> None:
    """Raise an error of the system if the folder of the store is a file or must not be used. It may be missing.

    Object stores have no folders, and may allow to read objects but not to ask for a folder.
    """
    if _renames(folder.files):
        with suppress(FileNotFoundError):
            if folder.files.info(folder.root)["type"] == "file":
                raise NotADirectoryError(f"{folder.root} is a file, not a folder")


def _fetch(folder: _RemoteFolder, name: str) -> tuple[Hashable, bytes | None] | None:
    """Return the state of an object, and its bytes unless it is not a file or too large; None if it does not exist."""
    try:
        info = folder.files.info(folder.path(name))
        usable = info["type"] == "file" and not info.get("islink") and (info["size"] or 0) <= MAX_FILE_BYTES
        return _state(info), folder.files.cat_file(folder.path(name)) if usable else None
    except FileNotFoundError:
        return None


def _write(folder: _RemoteFolder, name: str, data: bytes) -> None:
    """Write an object atomically."""
    if not _renames(folder.files):  # an object is written atomically
        folder.files.pipe_file(folder.path(name), data)
        return
    temporary = folder.path(f"incoming/{name}.{os.getpid()}.{time.time_ns()}.tmp")
    folder.files.makedirs(folder.path("incoming"), exist_ok=True)
    _sweep(folder)
    try:
        folder.files.pipe_file(temporary, data)
        if isinstance(folder.files, LocalFileSystem):  # its mv would move into a folder behind a link
            Path(temporary).replace(folder.path(name))
        else:
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


def _claim(folder: _RemoteFolder, name: str) -> str:
    return folder.path(f"claims/{name}")


def _content(folder: _RemoteFolder, path: str) -> bytes | None:
    try:
        if isinstance(folder.files, LocalFileSystem):  # its cat_file would wait for a pipe, and never end at a device
            return read_regular(Path(path), _CLAIM_BYTES)
        return bytes(folder.files.cat_file(path))
    except FileNotFoundError:
        return None


def _create(folder: _RemoteFolder, path: str, content: bytes) -> bool:
    """Create a file exclusively, as far as the file system can, and return whether it did not exist."""
    try:
        if isinstance(folder.files, LocalFileSystem):  # its pipe_file asks first and writes then
            folder.files.makedirs(path.rpartition("/")[0], exist_ok=True)
            file = folder.files.open(path, "xb")
            try:
                with file:
                    file.write(content)
            except BaseException:  # the disk may be full
                _remove_file(folder, path)
                raise
        else:
            folder.files.pipe_file(path, content, mode="create")
    except FileExistsError:
        return False
    return True


def _overwrite(folder: _RemoteFolder, path: str, content: bytes) -> None:
    if isinstance(folder.files, LocalFileSystem):  # its pipe_file would write through a link
        with atomic_write(Path(path)) as file:
            file.write(content)
    else:
        folder.files.pipe_file(path, content)


def _remove_file(folder: _RemoteFolder, path: str) -> None:
    with suppress(FileNotFoundError):
        folder.files.rm_file(path)


def _remove(folder: _RemoteFolder, name: str) -> bool:
    try:
        exists = bool(folder.files.isfile(folder.path(name)))
        if exists:
            folder.files.rm_file(folder.path(name))
    except FileNotFoundError:
        return False
    return exists


def _list(folder: _RemoteFolder) -> dict[str, int]:
    """Return the bytes of each encoding by key."""
    try:
        entries = folder.files.ls(folder.root, detail=True)
    except FileNotFoundError:
        return {}
    found = {}
    for entry in entries:
        key = key_of(entry["name"].rpartition("/")[2])
        if entry["type"] == "file" and key is not None:
            found[key] = int(entry["size"] or 0)
    return found


def _move_to_quarantine(folder: _RemoteFolder, name: str, state: Hashable, reason: str) -> None:
    try:
        if _state(folder.files.info(folder.path(name))) != state:
            return  # another machine has replaced it
    except FileNotFoundError:
        return
    target = folder.path(f"quarantine/{name}.{time.time_ns()}")
    folder.files.makedirs(folder.path("quarantine"), exist_ok=True)
    folder.files.mv(folder.path(name), target)
    folder.files.pipe_file(f"{target}.reason", reason.encode())


def _state(info: Mapping[str, Any]) -> Hashable:
    """Return the fields that differ between two states of an object, as far as the file system has them."""
    return tuple(str(info.get(name)) for name in ("size", "ETag", "etag", "md5", "mtime", "created", "LastModified"))
