"""The remote tier: the same files under any URL that fsspec knows, shared by machines.

Comes in: encodings at rest. Goes out: the same. What comes back is verified every time; what is not what its name
promises is moved to `quarantine/` there. Nobody waits for a place that does not answer: every deed has a time-out,
connecting included, and after one the place is not asked again for a while. This file alone knows fsspec.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, TypeVar

try:
    from fsspec import AbstractFileSystem
    from fsspec.core import url_to_fs
except ImportError as missing:
    raise ImportError("a remote store needs fsspec: pip install 'promptcache[remote]'") from missing

from promptcache.diagnostics import CorruptEncoding, StoreError, TierUnavailable
from promptcache.kv.format import check_payload, check_shape, pack, unpack
from promptcache.kv.header import read_header
from promptcache.kv.shelf import Resting
from promptcache.kv.store import Tier
from promptcache.kv.types import KVShape

MAX_FILE_BYTES = 8 * 2**30
"""What is larger is no encoding, and is not fetched."""

_KEY = re.compile(r"[0-9a-f]{64}")
_SUFFIX = ".safetensors"
_TEMPORARY = re.compile(r"[0-9a-f]{64}\.safetensors\.\d+\.(\d+)\.tmp")
_CREDENTIALS = re.compile(r"(?<=//)[^/@]*@")
_NO_SUCH_PLACE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
"""Of errors of the system, those that say that a URL is wrong; others say that nothing answers there now."""

_T = TypeVar("_T")


class RemoteShelf:
    """A `Shelf` under a URL. It has no budget, so nothing is evicted, and no locks.

    Args:
        url: Such as `s3://bucket/folder` or `file:///shared/folder`.
        timeout_s: How long to wait for each deed.
        rest_s: How long not to ask again after a time-out, or after it could not be connected to.
        options: What else fsspec's file system is made with, such as credentials.

    Raises:
        StoreError: The URL cannot be a store. One where nothing answers now can be one: it is connected to later.
    """

    tier = Tier.REMOTE

    def __init__(
        self, url: str, *, timeout_s: float = 10.0, rest_s: float = 30.0, options: Mapping[str, Any] | None = None
    ) -> None:
        self._timeout_s = timeout_s
        self._rest_s = rest_s
        self._asleep_until, self._why_asleep = 0.0, ""
        self._bad: dict[str, Hashable] = {}  # what is wrong and could not be set aside
        self._url, self._options = url, dict(options or {})
        self._name = _CREDENTIALS.sub("", url).rstrip("/")
        self._connected = False
        self._files: AbstractFileSystem
        self._root: str
        try:
            self._ask("open", lambda: None)
        except TierUnavailable as fault:
            error = fault.__cause__
            if not isinstance(error, OSError) or isinstance(error, _NO_SUCH_PLACE):
                raise StoreError(f"cannot use this URL as a store: {self._why_asleep}") from error

    def __str__(self) -> str:
        return self._name

    def read(self, key: str, shape: KVShape | None = None) -> Resting | None:
        """Fetch the encoding under `key` into memory."""
        name = _name_of(key)
        fetched = self._ask("read", lambda: self._fetch(self._path(name)))
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

    def write(self, resting: Resting) -> bool:
        """Put an encoding there, all of it at once; always True, for there is no budget."""
        name = _name_of(resting.recipe.key)
        if self._ask("write", lambda: self._files.isfile(self._path(name))) and resting.recipe.key not in self._bad:
            return True
        head, payload = pack(resting)
        data = b"".join((head, *payload))
        self._ask("write", lambda: self._put(self._path(name), data))
        self._bad.pop(resting.recipe.key, None)
        return True

    def delete(self, key: str) -> bool:
        """Remove the object of `key`."""
        name = _name_of(key)
        return self._ask("delete", lambda: self._remove(self._path(name)))

    def keys(self) -> Iterator[str]:
        """Yield the keys that are there now, without those that are bad and could not be set aside."""
        yield from (key for key in self._ask("list", self._list) if key not in self._bad)

    def nbytes(self) -> int:
        """Bytes of all encodings there."""
        return sum(self._ask("list", self._list).values())

    def pin(self, key: str) -> None:
        """Do nothing: nothing is evicted here."""

    def unpin(self, key: str) -> None:
        """Do nothing, as `pin`."""

    def pinned(self) -> frozenset[str]:
        """Return no keys: what rests here stays, pinned or not."""
        return frozenset()

    def claim(self, key: str, timeout_s: float) -> AbstractContextManager[bool]:
        """Yield False: there are no locks that machines share."""
        return nullcontext(False)

    def cool(self, key: str) -> None:
        """Do nothing: what rests here is fetched anew each time."""

    def gc(self, older_than_s: float = 86_400.0) -> tuple[str, ...]:
        """Remove what writers left that were killed so long ago, and return its names; touch nothing else."""
        return self._ask("clean up", lambda: self._sweep(time.time_ns() - int(older_than_s * 1e9)))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _connect(self) -> None:
        """Open the file system; many connect to their place then. No listing is cached: others write there, too."""
        if not self._connected:
            found = url_to_fs(self._url, use_listings_cache=False, skip_instance_cache=True, **self._options)
            self._files, self._root = found[0], str(found[1]).rstrip("/")
            self._connected = True

    def _fetch(self, path: str) -> tuple[Hashable, bytes | None] | None:
        """Return what tells this state of the object from others, and its bytes unless it is no file or too large."""
        try:
            info = self._files.info(path)
            usable = info["type"] == "file" and (info["size"] or 0) <= MAX_FILE_BYTES
            return _state(info), self._files.cat_file(path) if usable else None
        except FileNotFoundError:
            return None

    def _put(self, path: str, data: bytes) -> None:
        """Make an object that is never half there."""
        if type(self._files).mv is AbstractFileSystem.mv:  # an object store: to put is all or nothing, to move a copy
            self._files.pipe_file(path, data)
            return
        folder = f"{self._root}/incoming"
        temporary = f"{folder}/{path.rpartition('/')[2]}.{os.getpid()}.{time.time_ns()}.tmp"
        self._files.makedirs(folder, exist_ok=True)
        try:
            self._files.pipe_file(temporary, data)
            self._files.mv(temporary, path)
        except BaseException:
            with suppress(OSError):
                self._files.rm_file(temporary)
            raise

    def _remove(self, path: str) -> bool:
        try:
            there = bool(self._files.isfile(path))
            if there:
                self._files.rm_file(path)
        except FileNotFoundError:
            return False
        return there

    def _list(self) -> dict[str, int]:
        try:
            entries = self._files.ls(self._root, detail=True)
        except FileNotFoundError:
            return {}
        found = {}
        for entry in entries:
            name = entry["name"].rpartition("/")[2]
            key = name.removesuffix(_SUFFIX)
            if entry["type"] == "file" and name.endswith(_SUFFIX) and _KEY.fullmatch(key):
                found[key] = int(entry["size"] or 0)
        return found

    def _sweep(self, before_ns: int) -> tuple[str, ...]:
        try:
            names = [str(name).rpartition("/")[2] for name in self._files.ls(f"{self._root}/incoming", detail=False)]
        except FileNotFoundError:
            return ()
        left = tuple(
            name for name in names if (found := _TEMPORARY.fullmatch(name)) is not None and int(found[1]) < before_ns
        )
        for name in left:
            self._files.rm_file(f"{self._root}/incoming/{name}")
        return left

    def _set_aside(self, key: str, state: Hashable, fault: CorruptEncoding) -> None:
        try:
            self._ask("set aside", lambda: self._move_bad(self._path(_name_of(key)), state, str(fault)))
        except TierUnavailable as error:
            fault.add_note(f"It could not be set aside and is ignored from now on: {error}")
            self._bad[key] = state

    def _move_bad(self, path: str, state: Hashable, reason: str) -> None:
        try:
            if _state(self._files.info(path)) != state:
                return  # another machine has put a new one there
        except FileNotFoundError:
            return
        folder = f"{self._root}/quarantine"
        aside = f"{folder}/{path.rpartition('/')[2]}.{time.time_ns()}"
        self._files.makedirs(folder, exist_ok=True)
        self._files.mv(path, aside)
        self._files.pipe_file(f"{aside}.reason", reason.encode())

    def _ask(self, what: str, deed: Callable[[], _T]) -> _T:
        """Do something there, in a thread that is left alone when it does not come back."""
        if time.monotonic() < self._asleep_until:
            raise TierUnavailable(
                f"{self._name}: cannot {what}: {self._why_asleep}; it is not asked for {self._rest_s:g} s"
            )
        outcome: Future[_T] = Future()

        def connect_and_do() -> _T:
            self._connect()
            return deed()

        threading.Thread(target=_do, args=(connect_and_do, outcome), daemon=True, name="promptcache remote").start()
        try:
            return outcome.result(self._timeout_s)
        except TimeoutError as error:
            raise self._sleep(what, f"no answer within {self._timeout_s:g} s") from error
        except Exception as error:  # each backend raises errors of its own libraries, which have nothing in common
            why = str(error) or type(error).__name__
            if not self._connected:
                raise self._sleep(what, why) from error
            raise TierUnavailable(f"{self._name}: cannot {what}: {why}") from error

    def _sleep(self, what: str, why: str) -> TierUnavailable:
        """Do not ask for a while, and return what to say of it."""
        self._asleep_until, self._why_asleep = time.monotonic() + self._rest_s, why
        return TierUnavailable(f"{self._name}: cannot {what}: {why}")


def _name_of(key: str) -> str:
    if _KEY.fullmatch(key) is None:
        raise StoreError(f"{key!r} is not a key: 64 hexadecimal digits")
    return f"{key}{_SUFFIX}"


def _do(deed: Callable[[], _T], outcome: Future[_T]) -> None:
    try:
        outcome.set_result(deed())
    except BaseException as error:  # noqa: BLE001 - handed over whole to the thread that waits
        outcome.set_exception(error)


def _state(info: Mapping[str, Any]) -> Hashable:
    """Return what tells one state of an object from another, as far as its place says so."""
    return tuple(str(info.get(name)) for name in ("size", "ETag", "etag", "md5", "mtime", "created", "LastModified"))
