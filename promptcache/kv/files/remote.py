"""The remote tier: the same files under any URL that fsspec knows, shared by machines.

What is read is verified every time, and moved to `quarantine/` there if it is not what its name promises. Every
operation has a time-out, connecting included; after one the place is not asked again for a while. Only this file knows
fsspec.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

try:
    from fsspec import AbstractFileSystem
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem
    from fsspec.implementations.memory import MemoryFileSystem
except ImportError as missing:
    raise ImportError("a remote store needs fsspec: pip install 'promptcache[remote]'") from missing

from promptcache.diagnostics import CorruptEncoding, StoreError, TierUnavailable
from promptcache.kv.codec import StoredEncoding
from promptcache.kv.files.blob_tier import BlobTier
from promptcache.kv.files.format import check_payload, check_shape, pack, read_header, unpack
from promptcache.kv.keys import file_name, key_of
from promptcache.kv.store import Tier
from promptcache.kv.types import KVShape

MAX_FILE_BYTES = 8 * 2**30
"""A larger file is no encoding, and is not fetched."""

PARALLEL_READS = 16
"""Requests for encodings that are sent at once."""

_NO_SUCH_PLACE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
"""Of errors of the system, those that say that a URL is wrong; others say that nothing answers there now."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """An open file system and the folder of the store in it.

    Attributes:
        turn: Held while the file system is used, where it cannot be used by several threads.
    """

    files: AbstractFileSystem
    root: str
    turn: AbstractContextManager[Any]

    @staticmethod
    def open(url: str, options: Mapping[str, Any]) -> _Place:
        """Open a file system; many connect to their place then. No listing is cached: others write there, too."""
        files, root = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True, **options)
        return _Place(files, str(root).rstrip("/"), nullcontext() if _serves_threads(files) else threading.Lock())

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"


class RemoteTier(BlobTier):
    """Encodings as files under a URL. It has no budget, so nothing is evicted, and no locks.

    Args:
        url: Such as `s3://bucket/folder` or `file:///shared/folder`.
        timeout_s: How long to wait for each operation.
        rest_s: How long not to ask again after a time-out, or after it could not be connected to.
        options: What else fsspec's file system is made with, such as credentials.

    Raises:
        StoreError: The URL cannot be a store. One where nothing answers now can be one: it is connected to later.
    """

    kind = Tier.REMOTE

    def __init__(
        self, url: str, *, timeout_s: float = 10.0, rest_s: float = 30.0, options: Mapping[str, Any] | None = None
    ) -> None:
        self._url, self._options = url, dict(options or {})
        self._name = _without_credentials(url).rstrip("/")
        self._timeout_s = timeout_s
        self._rest_s = rest_s
        self._asleep_until, self._why_asleep = 0.0, ""
        self._bad: dict[str, Hashable] = {}  # what is wrong and could not be set aside
        self._place: _Place | None = None
        try:
            self._ask("open", lambda _: None)
        except TierUnavailable as fault:
            error = fault.__cause__
            if not isinstance(error, OSError) or isinstance(error, _NO_SUCH_PLACE):
                raise StoreError(f"cannot use this URL as a store: {self._why_asleep}") from error

    def __str__(self) -> str:
        return self._name

    @property
    def max_parallel_reads(self) -> int:  # type: ignore[override]
        """Many where the file system can be used by several threads, else one."""
        place = self._place
        return PARALLEL_READS if place is not None and _serves_threads(place.files) else 1

    def read(self, key: str, shape: KVShape | None = None) -> StoredEncoding | None:
        """Fetch the encoding under `key` into memory."""
        name = file_name(key)
        fetched = self._ask("read", lambda place: _fetch(place, name))
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
            self._set_aside(key, state, error)
            raise
        self._bad.pop(key, None)
        return unpack(header, payload)

    def write(self, stored: StoredEncoding) -> bool:
        """Put an encoding there, all of it at once; always True, for there is no budget."""
        name = file_name(stored.recipe.key)
        is_there = self._ask("write", lambda place: bool(place.files.isfile(place.path(name))))
        if is_there and stored.recipe.key not in self._bad:
            return True
        head, payload = pack(stored)
        data = b"".join((head, *payload))
        self._ask("write", lambda place: _put(place, name, data))
        self._bad.pop(stored.recipe.key, None)
        return True

    def delete(self, key: str) -> bool:
        """Remove the object of `key`."""
        name = file_name(key)
        return self._ask("delete", lambda place: _remove(place, name))

    def keys(self) -> Iterator[str]:
        """Yield the keys that are there now, without those that are bad and could not be set aside."""
        yield from (key for key in self._ask("list", _list) if key not in self._bad)

    def nbytes(self) -> int:
        """Bytes of all encodings there."""
        return sum(self._ask("list", _list).values())

    def gc(self, older_than_s: float = 86_400.0) -> tuple[str, ...]:
        """Remove what writers left that were killed so long ago, and return its names; touch nothing else."""
        before_ns = time.time_ns() - int(older_than_s * 1e9)
        return self._ask("clean up", lambda place: _sweep(place, before_ns))

    def _set_aside(self, key: str, state: Hashable, fault: CorruptEncoding) -> None:
        try:
            self._ask("set aside", lambda place: _move_bad(place, file_name(key), state, str(fault)))
        except TierUnavailable as error:
            fault.add_note(f"It could not be set aside and is ignored from now on: {error}")
            self._bad[key] = state

    def _ask(self, what: str, operation: Callable[[_Place], _T]) -> _T:
        """Run an operation in a thread of its own, which is abandoned when it does not come back in time."""
        if time.monotonic() < self._asleep_until:
            raise TierUnavailable(
                f"{self._name}: cannot {what}: {self._why_asleep}; it is not asked for {self._rest_s:g} s"
            )
        outcome: Future[_T] = Future()
        threading.Thread(target=self._run, args=(operation, outcome), daemon=True, name="promptcache remote").start()
        try:
            return outcome.result(self._timeout_s)
        except TimeoutError as error:
            self._place = None  # its connection may be stuck for good
            raise self._sleep(what, f"no answer within {self._timeout_s:g} s") from error
        except Exception as error:  # each backend raises errors of its own libraries, which have nothing in common
            why = str(error) or type(error).__name__
            if self._place is None:
                raise self._sleep(what, why) from error
            raise TierUnavailable(f"{self._name}: cannot {what}: {why}") from error

    def _run(self, operation: Callable[[_Place], _T], outcome: Future[_T]) -> None:
        try:
            place = self._place
            if place is None:
                place = self._place = _Place.open(self._url, self._options)
            with place.turn:
                outcome.set_result(operation(place))
        except BaseException as error:  # noqa: BLE001 - handed over whole to the thread that waits
            outcome.set_exception(error)

    def _sleep(self, what: str, why: str) -> TierUnavailable:
        """Do not ask for a while, and return what to say of it."""
        self._asleep_until, self._why_asleep = time.monotonic() + self._rest_s, why
        return TierUnavailable(f"{self._name}: cannot {what}: {why}")


def _without_credentials(url: str) -> str:
    """Return a URL as messages show it: without `user:password@`."""
    return re.sub(r"(?<=//)[^/@]*@", "", url)


def _serves_threads(files: AbstractFileSystem) -> bool:
    """Whether several threads may use a file system at once: many that are not asynchronous have one connection."""
    return bool(files.async_impl) or isinstance(files, LocalFileSystem | MemoryFileSystem)


def _fetch(place: _Place, name: str) -> tuple[Hashable, bytes | None] | None:
    """Return what tells this state of the object from others, and its bytes unless it is no file or too large."""
    try:
        info = place.files.info(place.path(name))
        usable = info["type"] == "file" and (info["size"] or 0) <= MAX_FILE_BYTES
        return _state(info), place.files.cat_file(place.path(name)) if usable else None
    except FileNotFoundError:
        return None


def _put(place: _Place, name: str, data: bytes) -> None:
    """Make an object that is never half there."""
    if type(place.files).mv is AbstractFileSystem.mv:  # an object store: to put is all or nothing, to move a copy
        place.files.pipe_file(place.path(name), data)
        return
    temporary = place.path(f"incoming/{name}.{os.getpid()}.{time.time_ns()}.tmp")
    place.files.makedirs(place.path("incoming"), exist_ok=True)
    try:
        place.files.pipe_file(temporary, data)
        place.files.mv(temporary, place.path(name))
    except BaseException:
        with suppress(OSError):
            place.files.rm_file(temporary)
        raise


def _remove(place: _Place, name: str) -> bool:
    try:
        there = bool(place.files.isfile(place.path(name)))
        if there:
            place.files.rm_file(place.path(name))
    except FileNotFoundError:
        return False
    return there


def _list(place: _Place) -> dict[str, int]:
    """Return the bytes of each encoding by key."""
    try:
        entries = place.files.ls(place.root, detail=True)
    except FileNotFoundError:
        return {}
    found = {}
    for entry in entries:
        key = key_of(entry["name"].rpartition("/")[2])
        if entry["type"] == "file" and key is not None:
            found[key] = int(entry["size"] or 0)
    return found


def _sweep(place: _Place, before_ns: int) -> tuple[str, ...]:
    try:
        names = [str(name).rpartition("/")[2] for name in place.files.ls(place.path("incoming"), detail=False)]
    except FileNotFoundError:
        return ()
    left = tuple(name for name in names if (written_ns := _time_of(name)) is not None and written_ns < before_ns)
    for name in left:
        place.files.rm_file(place.path(f"incoming/{name}"))
    return left


def _time_of(temporary: str) -> int | None:
    """Return when the writer of a temporary file began, by its name; None for the name of any other file."""
    parts = temporary.rsplit(".", 3)
    if len(parts) != 4 or key_of(parts[0]) is None or parts[3] != "tmp" or not (parts[1] + parts[2]).isdecimal():
        return None
    return int(parts[2])


def _move_bad(place: _Place, name: str, state: Hashable, reason: str) -> None:
    try:
        if _state(place.files.info(place.path(name))) != state:
            return  # another machine has put a new one there
    except FileNotFoundError:
        return
    aside = place.path(f"quarantine/{name}.{time.time_ns()}")
    place.files.makedirs(place.path("quarantine"), exist_ok=True)
    place.files.mv(place.path(name), aside)
    place.files.pipe_file(f"{aside}.reason", reason.encode())


def _state(info: Mapping[str, Any]) -> Hashable:
    """Return what tells one state of an object from another, as far as its place says so."""
    return tuple(str(info.get(name)) for name in ("size", "ETag", "etag", "md5", "mtime", "created", "LastModified"))
