"""The disk tier: one file per encoding, in a folder that any number of processes may share.

The folder is the index, so nothing has to be rebuilt after a crash: every file in it is complete. A file that does not
match its key is never served. It is moved to `quarantine/`, with a line in the log there.
"""

from __future__ import annotations

import os
import stat
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import NamedTuple

from promptcache.atomic import refuse_links
from promptcache.diagnostics import CorruptEncoding, StoreError, TierUnavailable
from promptcache.kv.codec import StoredEncoding
from promptcache.kv.eviction import Cost, GreedyDual, encoding_cost
from promptcache.kv.files.blob_tier import BlobTier, Verify, signature_folder
from promptcache.kv.files.folder import (
    FileState,
    Incoming,
    StoreFolder,
    expand_home,
    file_version,
    open_encoding,
    open_header,
)
from promptcache.kv.files.format import Header, check_payload, pack, shape_text, unpack
from promptcache.kv.keys import FORMAT_VERSION, SUFFIX, Recipe
from promptcache.kv.store import OnWait, Tier, go_on
from promptcache.kv.types import KVShape
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
        budget_bytes: Limit for encodings, files being written and files in quarantine together. Files above it are
            evicted, by the uses in this process and the access times of the files. The log of the quarantine is not
            counted. None: no limit.
        verify: When checksums of payloads are verified: "first" use in this process, "always" or "never".
        mmap: Whether to memory-map files. Processes then share memory, and bytes are read when they are used. Choose
            False if other programs write to the folder: a mapped file that is truncated kills the process.
        cost: Cost of computing an encoding again.
    """

    kind = Tier.DISK

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        budget_bytes: int | None = None,
        verify: Verify | str = Verify.FIRST,
        mmap: bool = True,
        cost: Cost = encoding_cost,
    ) -> None:
        self._name = expand_home(folder)
        self._folder = StoreFolder(self._name)
        self._budget = None if budget_bytes is None else DiskBudget(self._folder, budget_bytes, cost)
        self._verify = Verify(verify)
        self._mmap = mmap
        self._verified: dict[str, FileState] = {}
        self._bad: dict[str, FileState] = {}  # corrupt files that could not be moved to quarantine
        with suppress(TierUnavailable):
            self._quarantine_outdated()
            self.trim()

    def __str__(self) -> str:
        return str(self._name)

    def read(self, key: str, shape: KVShape | None = None) -> StoredEncoding | None:
        """Return the encoding of `key`, with tensors mapped from its file."""
        path = self._folder.path(key)
        with self._folder.tier_errors("read"), suppress(FileNotFoundError):  # another process may evict it any time
            for is_last in (False, True):
                state = FileState.of(path.lstat())
                if self._bad.get(key) == state:
                    return None
                try:
                    return self._open(key, path, state, shape)
                except CorruptEncoding as error:
                    if self._quarantine(key, path, state, error) or is_last:
                        raise  # otherwise another process has replaced the file
        return None

    def write(self, stored: StoredEncoding) -> bool:
        """Write an encoding to its own file."""
        key = stored.recipe.key
        path = self._folder.path(key)
        if self._has_file(key, path):
            return True
        head, payload = pack(stored)
        with self._folder.tier_errors("write"):
            self._folder.create()
            incoming = self._allocate(key, len(head) + stored.nbytes)
            if incoming is None:
                return False
            with incoming:
                incoming.fill((head, *payload))
                incoming.publish(path)
        return True

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

    def delete(self, key: str) -> bool:
        """Remove the file of `key`."""
        with self._folder.tier_errors("delete"):
            try:
                self._folder.path(key).unlink()
            except FileNotFoundError:
                return False
        return True

    def keys(self) -> Iterator[str]:
        """Yield the keys that have a file now, without those of known corrupt files."""
        with self._folder.tier_errors("list"):
            found = self._folder.scan()
        yield from (key for key, status in found.items() if self._bad.get(key) != FileState.of(status))

    def nbytes(self) -> int:
        """Return the bytes of the files of all encodings."""
        with self._folder.tier_errors("list"):
            return sum(status.st_size for status in self._folder.scan().values())

    def signatures(self, fingerprint: str) -> DiskTier:
        """Return the tier in `signatures/` for a fingerprint. No budget counts it."""
        place = self._folder.root / signature_folder(fingerprint)
        with self._folder.tier_errors("find signatures"):
            refuse_links(place.parent, place)
        try:
            return DiskTier(place, mmap=self._mmap)
        except StoreError as error:  # it is a file, or must not be searched
            raise TierUnavailable(str(error)) from error

    def claim(self, key: str, timeout_s: float, on_wait: OnWait = go_on) -> AbstractContextManager[bool]:
        """Return a context in which no other process computes `key`. A claim ends with the process that holds it."""
        return self._folder.claimed(key, timeout_s, on_wait)

    def header(self, key: str) -> Header | None:
        """Return the header of a file without reading its payload, or None if there is no file.

        Raises:
            CorruptEncoding: The file does not match its key. It is not moved.
        """
        with self._folder.tier_errors("read"), suppress(FileNotFoundError):
            return open_header(self._folder.path(key), key)
        return None

    def files(self) -> Mapping[str, tuple[int, float]]:
        """Return the size of each encoding's file and the time of its last use (Unix time), by key."""
        with self._folder.tier_errors("list"):
            return {key: (status.st_size, status.st_atime) for key, status in self._folder.scan().items()}

    def quarantined(self) -> Mapping[str, int]:
        """Return the size of each file in quarantine, by name."""
        with self._folder.tier_errors("list"):
            return {name: status.st_size for name, status in self._folder.quarantined()}

    def empty_quarantine(self) -> tuple[str, ...]:
        """Remove the files in quarantine and return their names. The log stays."""
        with self._folder.tier_errors("clean up"), self._folder.locked():
            found = self._folder.quarantined()
            self._folder.empty_quarantine(sum(status.st_size for _, status in found) + 1)
        return tuple(name for name, _ in found)

    def gc(self) -> tuple[str, ...]:
        """Remove the unfinished files of killed writers and return their names. Nothing else is removed but locks."""
        with self._folder.tier_errors("clean up"), self._folder.locked():
            self._folder.sweep_locks()
            return self._folder.sweep()

    def verify_all(self) -> Iterator[VerifyResult]:
        """Read every file among the encodings and yield a result for each. Nothing is moved.

        A file with the suffix of encodings must be one. Other files are foreign and are not opened. All files of one
        model must hold KV of one shape.
        """
        with self._folder.tier_errors("list"):
            paths = sorted(self._folder.encodings.iterdir()) if self._folder.encodings.exists() else []
        with self._folder.tier_errors("read"):
            shapes = _shapes_by_model(path for path in paths if path.name.endswith(SUFFIX))
        for path in paths:
            with self._folder.tier_errors("read"), suppress(FileNotFoundError):
                nbytes = path.lstat().st_size
                if path.name.endswith(SUFFIX):
                    yield VerifyResult(path.name, nbytes, _fault_in(path, shapes, mapped=self._mmap))
                else:
                    yield VerifyResult(path.name, nbytes, None, foreign=True)

    def trim(self) -> None:
        """Evict until the budget holds, as far as files being written allow."""
        if self._budget is not None:
            with self._folder.tier_errors("evict"):
                self._budget.trim()

    def _quarantine_outdated(self) -> None:
        """Move files of other format versions to quarantine, once for each folder. No key refers to them any more."""
        current = str(FORMAT_VERSION)
        with self._folder.tier_errors("read"):
            if self._folder.format_version() == current:
                return
            for key in self._folder.scan():
                path = self._folder.path(key)
                with suppress(FileNotFoundError):
                    state = FileState.of(path.lstat())
                    version = file_version(path)
                    if version not in (None, current):
                        reason = f"outdated: format version {version}, now {current}"
                        self._folder.move_to_quarantine(path, state, reason)
            self._folder.set_format_version(current)

    def _open(self, key: str, path: Path, state: FileState, shape: KVShape | None) -> StoredEncoding:
        header, payload = open_encoding(path, key, shape, mapped=self._mmap)
        known = self._verify is Verify.NEVER or self._verified.get(key) == state
        if not known or self._verify is Verify.ALWAYS:
            check_payload(header, payload, str(path))
            self._verified[key] = state
        with suppress(OSError):  # in a read-only folder, only this process knows of the use
            os.utime(path, ns=(time.time_ns(), state.modified_ns), follow_symlinks=False)
        if self._budget is not None:
            self._budget.record_use(key, state.nbytes, header.recipe)
        return unpack(header, payload)

    def _quarantine(self, key: str, path: Path, state: FileState, fault: CorruptEncoding) -> bool:
        """Move a corrupt file to quarantine; return False if another process has replaced it meanwhile."""
        try:
            return self._folder.move_to_quarantine(path, state, str(fault))
        except (OSError, TierUnavailable) as error:
            fault.add_note(f"It could not be moved to quarantine and is ignored from now on: {error}")
            self._bad[key] = state
            return True

    def _has_file(self, key: str, path: Path) -> bool:
        with self._folder.tier_errors("read"), suppress(FileNotFoundError):
            status = path.lstat()
            return stat.S_ISREG(status.st_mode) and self._bad.get(key) != FileState.of(status)
        return False

    def _allocate(self, key: str, nbytes: int) -> Incoming | None:
        with self._folder.locked():
            self._folder.sweep()
            if self._budget is not None and not self._budget.make_room(nbytes):
                return None
            return self._folder.open_incoming(key, nbytes)


class DiskBudget:
    """Limit in bytes for encodings, files being written and files in quarantine together. Thread-safe.

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
        self._policy = GreedyDual()
        self._sizes: dict[str, int] = {}  # of the keys in the policy
        self._lock = new_lock()  # guards both

    def record_use(self, key: str, nbytes: int, recipe: Recipe) -> None:
        """Record a use of a file."""
        with self._lock:
            if key not in self._policy:
                self._sizes[key] = nbytes
                self._policy.add(key, nbytes, self._cost(recipe))
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
        quarantine_bytes = sum(status.st_size for _, status in self._folder.quarantined())
        used_bytes = sum(status.st_size for status in files.values())
        needed = used_bytes + incoming_bytes + quarantine_bytes + nbytes - self._budget_bytes
        if needed <= 0:
            return True
        self._synchronize(files)
        victims = self._policy.victims(needed - quarantine_bytes)
        if victims is None:
            return False
        self._folder.empty_quarantine(needed)
        self._evict(victims)
        return True

    def _evict(self, victims: Sequence[str]) -> None:
        for key in victims:
            self._folder.path(key).unlink(missing_ok=True)  # mapped files stay readable
            del self._sizes[key]
            self._policy.evict((key,))

    def _synchronize(self, files: Mapping[str, os.stat_result]) -> None:
        """Update the policy with the files of other processes."""
        for key in [key for key, size in self._sizes.items() if key not in files or files[key].st_size != size]:
            del self._sizes[key]
            self._policy.remove(key)
        for key in sorted(files.keys() - self._sizes.keys(), key=lambda key: files[key].st_atime_ns):
            self._sizes[key] = files[key].st_size
            self._policy.add(key, max(1, files[key].st_size), self._cost_of(key))

    def _cost_of(self, key: str) -> float:
        try:
            return self._cost(open_header(self._folder.path(key), key).recipe)
        except (CorruptEncoding, OSError):
            return 0.0  # a corrupt file is evicted first


def _fault_in(path: Path, shapes: Mapping[str, Counter[KVShape]], *, mapped: bool) -> str | None:
    try:
        header, payload = open_encoding(path, path.stem, mapped=mapped)
        check_payload(header, payload, str(path))
    except CorruptEncoding as error:
        return str(error)
    counts = shapes[header.recipe.fingerprint].most_common(2)
    if len(counts) == 1 or (counts[0][0] == header.shape and counts[0][1] > counts[1][1]):
        return None
    other = counts[counts[0][0] == header.shape][0]
    return f"{path}: holds KV of {shape_text(header.shape)}; other files of its model hold {shape_text(other)}"


def _shapes_by_model(paths: Iterable[Path]) -> Mapping[str, Counter[KVShape]]:
    """Return the number of files for each KV shape, by the fingerprint of the model. Corrupt files are left out."""
    shapes: dict[str, Counter[KVShape]] = defaultdict(Counter)
    for path in paths:
        with suppress(CorruptEncoding, FileNotFoundError):
            header = open_header(path, path.stem)
            shapes[header.recipe.fingerprint][header.shape] += 1
    return shapes
