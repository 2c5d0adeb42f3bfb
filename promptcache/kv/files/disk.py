"""The disk tier: one file per encoding, in a folder that any number of processes may share.

The folder is the index, so nothing has to be rebuilt after a crash: every file in it is complete.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from typing import NamedTuple

from promptcache.diagnostics import CorruptEncoding, TierUnavailable
from promptcache.kv.eviction import Cost, GreedyDual, encoding_cost
from promptcache.kv.files.blob_tier import BlobTier
from promptcache.kv.files.folder import StoreFolder, expand_home, fill, open_file, open_header
from promptcache.kv.files.format import Header, unpack
from promptcache.kv.keys import SUFFIX, Recipe
from promptcache.kv.store import Tier
from promptcache.locks import new_lock


class VerifyResult(NamedTuple):
    """Result of `DiskTier.verify_all` for one file.

    Attributes:
        name: Name of the file.
        nbytes: Size of the file.
        fault: Why the file cannot be served. None for a good file and for a foreign one.
        foreign: Whether the file does not have the suffix of encodings. It is neither read nor removed.
    """

    name: str
    nbytes: int
    fault: str | None
    foreign: bool = False


class DiskTier(BlobTier):
    """Encodings as files of a folder.

    Args:
        folder: Path of the folder, created if it is missing. A read-only folder is only read.
        budget_bytes: Limit for encodings and files being written together. Files above it are evicted, by the uses in
            this process and the modification times of the files, which each use sets. None: no limit.
        cost: Cost of computing an encoding again.
    """

    kind = Tier.DISK
    has_locks = True

    def __init__(
        self, folder: str | os.PathLike[str], *, budget_bytes: int | None = None, cost: Cost = encoding_cost
    ) -> None:
        self._name = expand_home(folder)
        self._folder = StoreFolder(self._name)
        self._budget = None if budget_bytes is None else DiskBudget(self._folder, budget_bytes, cost)
        with suppress(TierUnavailable):
            self.trim()

    def __str__(self) -> str:
        return str(self._name)

    def read(self, key: str) -> memoryview | None:
        """Return the file of `key`, mapped into memory. Processes then share memory."""
        path = self._folder.path(key)
        with self._folder.tier_errors("read"), suppress(FileNotFoundError):  # another process may evict it any time
            header, data = open_file(path, key)
            with suppress(OSError):  # in a read-only folder, only this process knows of the use
                os.utime(path, follow_symlinks=False)
            if self._budget is not None:
                self._budget.record_use(key, len(data), header.recipe)
            return data
        return None

    def write(self, key: str, data: bytes) -> None:
        """Write an encoding to its own file, unless there is one. Above the budget nothing is written."""
        path = self._folder.path(key)
        with self._folder.tier_errors("write"):
            with suppress(FileNotFoundError):
                if stat.S_ISREG(path.lstat().st_mode):
                    return
            self._folder.create()
            with ExitStack() as stack:
                with self._folder.locked():
                    self._folder.sweep()
                    if self._budget is not None and not self._budget.make_room(len(data)):
                        return
                    incoming, descriptor = stack.enter_context(self._folder.incoming_file(key, len(data)))
                fill(incoming, descriptor, data, path)

    def probe(self) -> None:
        """Write and remove a small file."""
        with self._folder.tier_errors("write"):
            self._folder.create()
            file = self._folder.incoming / f"probe.{os.getpid()}.{time.time_ns()}"
            try:
                with file.open("xb") as probe:
                    probe.write(b"probe")
            finally:
                file.unlink(missing_ok=True)

    def delete(self, key: str) -> None:
        """Remove the file of `key`."""
        with self._folder.tier_errors("delete"):
            self._folder.path(key).unlink(missing_ok=True)

    def keys(self) -> Iterator[str]:
        """Yield the keys that have a file now."""
        with self._folder.tier_errors("list"):
            found = self._folder.scan()
        yield from found

    def nbytes(self) -> int:
        """Return the bytes of the files of all encodings."""
        with self._folder.tier_errors("list"):
            return sum(status.st_size for status in self._folder.scan().values())

    def try_lock(self, key: str, timeout_s: float) -> Callable[[], object] | None:
        """Lock `key` against other threads and processes. The lock ends with the process that holds it."""
        return self._folder.try_lock(key, timeout_s)

    def header(self, key: str) -> Header | None:
        """Return the header of a file without reading its payload, or None if there is no file.

        Raises:
            CorruptEncoding: The file does not match its key.
        """
        with self._folder.tier_errors("read"), suppress(FileNotFoundError):
            return open_header(self._folder.path(key), key)
        return None

    def files(self) -> Mapping[str, tuple[int, float]]:
        """Return the size of each encoding's file and the time of its last use (Unix time), by key."""
        with self._folder.tier_errors("list"):
            return {key: (status.st_size, status.st_mtime) for key, status in self._folder.scan().items()}

    def gc(self) -> tuple[str, ...]:
        """Remove the unfinished files of killed writers and return their names. Nothing else is removed but locks."""
        with self._folder.tier_errors("clean up"), self._folder.locked():
            self._folder.sweep_locks()
            return self._folder.sweep()

    def verify_all(self) -> Iterator[VerifyResult]:
        """Read every file among the encodings and yield a result for each. Nothing is removed.

        A file with the suffix of encodings must be one. Other files are foreign and are not opened.
        """
        with self._folder.tier_errors("list"):
            paths = sorted(self._folder.encodings.iterdir()) if self._folder.encodings.exists() else []
        for path in paths:
            with self._folder.tier_errors("read"), suppress(FileNotFoundError):
                nbytes, fault = path.lstat().st_size, None
                is_foreign = not path.name.endswith(SUFFIX)
                if not is_foreign:
                    try:
                        unpack(open_file(path, path.stem)[1], str(path), path.stem)
                    except CorruptEncoding as error:
                        fault = str(error)
                yield VerifyResult(path.name, nbytes, fault, is_foreign)

    def trim(self) -> None:
        """Evict until the budget holds, as far as files being written allow."""
        if self._budget is not None:
            with self._folder.tier_errors("evict"):
                self._budget.trim()


class DiskBudget:
    """Limit in bytes for encodings and files being written together. Thread-safe.

    Other processes write, use and remove files as well. So files are counted again each time, with the folder locked.

    Args:
        folder: The folder of the tier.
        budget_bytes: The limit.
        cost: Cost of computing an encoding again.
    """

    def __init__(self, folder: StoreFolder, budget_bytes: int, cost: Cost) -> None:
        self._folder = folder
        self._budget_bytes = budget_bytes
        self._cost = cost
        self._policy = GreedyDual[str]()
        self._sizes: dict[str, int] = {}  # of the keys in the policy
        self._lock = new_lock()  # guards both

    def record_use(self, key: str, nbytes: int, recipe: Recipe) -> None:
        """Record a use of a file."""
        with self._lock:
            if key not in self._policy:
                self._add(key, nbytes, self._cost(recipe))
            self._policy.touch(key)

    def make_room(self, nbytes: int) -> bool:
        """Evict until `nbytes` more fit. If they cannot fit, evict nothing and return False.

        The caller holds the lock of the folder.
        """
        with self._lock:
            return self._make_room(nbytes)

    def trim(self) -> None:
        """Evict until the budget holds, as far as files being written allow."""
        with self._folder.locked(), self._lock:
            if not self._make_room(0):
                self._evict(tuple(self._policy.ranked()))

    def _make_room(self, nbytes: int) -> bool:
        incoming_bytes = self._folder.incoming_bytes()  # first: a file published meanwhile counts twice, not never
        files = self._folder.scan()
        used_bytes = sum(status.st_size for status in files.values())
        needed = used_bytes + incoming_bytes + nbytes - self._budget_bytes
        if needed <= 0:
            return True
        self._synchronize(files)
        victims = self._policy.victims(needed)
        if victims is None:
            return False
        self._evict(victims)
        return True

    def _evict(self, victims: Iterable[str]) -> None:
        for key in victims:
            self._folder.path(key).unlink(missing_ok=True)  # mapped files stay readable
            del self._sizes[key]
            self._policy.evict((key,))

    def _synchronize(self, files: Mapping[str, os.stat_result]) -> None:
        """Update the policy with the files of other processes."""
        for key in [key for key, size in self._sizes.items() if key not in files or files[key].st_size != size]:
            del self._sizes[key]
            self._policy.remove(key)
        for key in sorted(files.keys() - self._sizes.keys(), key=lambda key: files[key].st_mtime_ns):
            self._add(key, files[key].st_size, self._cost_of(key))

    def _add(self, key: str, nbytes: int, cost: float) -> None:
        self._sizes[key] = nbytes
        self._policy.add(key, max(1, nbytes), cost)

    def _cost_of(self, key: str) -> float:
        try:
            return self._cost(open_header(self._folder.path(key), key).recipe)
        except (CorruptEncoding, OSError):
            return 0.0  # a damaged file is evicted first
