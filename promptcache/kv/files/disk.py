"""The disk tier: one file per encoding in a folder that any number of processes may share.

Comes in: encodings at rest. Goes out: the same, as memory mapped from their files. The folder is the index, and nothing
has to be rebuilt after a crash: what stands in it under a name is whole. A file that is not what its name promises is
never served; it is moved to `quarantine/`, with a line in the log there.
"""

from __future__ import annotations

import os
import stat
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from promptcache.diagnostics import CorruptEncoding, TierUnavailable
from promptcache.kv.eviction import Cost, encoding_cost
from promptcache.kv.files.blob_tier import BlobTier, StoredEncoding
from promptcache.kv.files.disk_budget import DiskBudget
from promptcache.kv.files.folder import Folder, Identity, Incoming
from promptcache.kv.files.format import check_payload, check_shape, pack, shape_text, unpack
from promptcache.kv.files.header import Header
from promptcache.kv.files.names import SUFFIX
from promptcache.kv.files.paths import expand_home
from promptcache.kv.files.reading import file_version, open_encoding, open_header
from promptcache.kv.keys import FORMAT_VERSION
from promptcache.kv.store import Tier
from promptcache.kv.types import KVShape


class Verify(StrEnum):
    """When a payload is compared with its checksum. Headers always are."""

    FIRST = "first"
    ALWAYS = "always"
    NEVER = "never"


class Verdict(NamedTuple):
    """What `verify_all` found out about a file.

    Attributes:
        name: Of the file.
        nbytes: Its size.
        fault: What is wrong with it; None for what may be served, and for what is foreign.
        foreign: Whether its name is not that of an encoding: it is neither read nor removed.
    """

    name: str
    nbytes: int
    fault: str | None
    foreign: bool = False


class DiskTier(BlobTier):
    """Encodings as files of a folder.

    Args:
        folder: Made where it is missing. One that cannot be written is read all the same.
        budget_bytes: What encodings, files being written and files set aside may take together. What is over is
            evicted, by this process's record of uses and the files' times. None is no limit.
        verify: `first` reads a payload before its first use in this process; `always` before every use.
        mmap: Map files, so that processes share memory and nothing is read before it is used. Only for folders that
            only this library writes in: a mapped file that is truncated kills the process.
        cost: What it takes to make an encoding again.
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
        self._folder = Folder(expand_home(folder))
        self._budget = None if budget_bytes is None else DiskBudget(self._folder, budget_bytes, cost)
        self._verify = Verify(verify)
        self._mmap = mmap
        self._verified: dict[str, Identity] = {}
        self._bad: dict[str, Identity] = {}  # what is wrong and could not be set aside
        with suppress(TierUnavailable):
            self._set_outdated_aside()
            self.trim()

    def __str__(self) -> str:
        return str(self._folder.root)

    def _set_outdated_aside(self) -> None:
        """Move files of other format versions to the quarantine, once for each folder: no key names them any more."""
        current = str(FORMAT_VERSION)
        with self._folder.refusing("read"):
            if self._folder.format_version() == current:
                return
            for key in self._folder.scan():
                path = self._folder.path(key)
                with suppress(FileNotFoundError):
                    identity = Identity.of(path.lstat())
                    version = file_version(path)
                    if version not in (None, current):
                        self._folder.set_aside(path, identity, f"outdated: format version {version}, now {current}")
            self._folder.note_format_version(current)

    def read(self, key: str, shape: KVShape | None = None) -> StoredEncoding | None:
        """Return the encoding under `key`, its tensors mapped from the file."""
        path = self._folder.path(key)
        with self._folder.refusing("read"), suppress(FileNotFoundError):  # may be evicted at any time
            identity = Identity.of(path.lstat())
            if self._bad.get(key) == identity:
                return None
            try:
                return self._open(key, path, identity, shape)
            except CorruptEncoding as error:
                if self._set_aside(key, path, identity, error):
                    raise
            return self.read(key, shape)  # another process was faster, and may have written it again
        return None

    def write(self, stored: StoredEncoding) -> bool:
        """Write an encoding to a file of its own."""
        key = stored.recipe.key
        path = self._folder.path(key)
        if self._stands(key, path):
            return True
        head, payload = pack(stored)
        with self._folder.refusing("write"):
            self._folder.make()
            incoming = self._reserve(key, len(head) + stored.nbytes)
            if incoming is None:
                return False
            with incoming:
                incoming.fill((head, *payload))
                incoming.publish(path)
        return True

    def delete(self, key: str) -> bool:
        """Remove the file of `key`."""
        with self._folder.refusing("delete"):
            try:
                self._folder.path(key).unlink()
            except FileNotFoundError:
                return False
        return True

    def keys(self) -> Iterator[str]:
        """Yield the keys whose files stand here now, without those that are bad and could not be set aside."""
        with self._folder.refusing("list"):
            found = self._folder.scan()
        yield from (key for key, status in found.items() if self._bad.get(key) != Identity.of(status))

    def nbytes(self) -> int:
        """Bytes of the files of all encodings."""
        with self._folder.refusing("list"):
            return sum(status.st_size for status in self._folder.scan().values())

    def pin(self, key: str) -> None:
        """Keep `key` from eviction, in every process."""
        self._folder.path(key)
        with self._folder.refusing("pin"):
            self._folder.make()
            (self._folder.pins / key).touch()

    def unpin(self, key: str) -> None:
        """Let `key` be evicted again."""
        self._folder.path(key)
        with self._folder.refusing("unpin"):
            (self._folder.pins / key).unlink(missing_ok=True)

    def pinned(self) -> frozenset[str]:
        """Return the keys that are pinned, by whatever process."""
        with self._folder.refusing("list"):
            return self._folder.pinned()

    def claim(self, key: str, timeout_s: float) -> AbstractContextManager[bool]:
        """Be the only one, of all processes, that makes `key`; a claim ends with the process that holds it."""
        return self._folder.claimed(key, timeout_s)

    def header(self, key: str) -> Header | None:
        """Return what a file says of itself; its payload is not read.

        Raises:
            CorruptEncoding: It is not what its name promises. It stays where it is.
        """
        with self._folder.refusing("read"), suppress(FileNotFoundError):
            return open_header(self._folder.path(key), key)
        return None

    def files(self) -> Mapping[str, tuple[int, float]]:
        """Return bytes, and time of the last use in seconds since 1970, of every encoding's file, by key."""
        with self._folder.refusing("list"):
            return {key: (status.st_size, status.st_atime) for key, status in self._folder.scan().items()}

    def quarantined(self) -> Mapping[str, int]:
        """Return the bytes of each file that was set aside, by name."""
        with self._folder.refusing("list"):
            return {name: status.st_size for name, status in self._folder.quarantined()}

    def empty_quarantine(self) -> tuple[str, ...]:
        """Remove the files that were set aside, and return their names; the log of why stays."""
        with self._folder.refusing("clean up"), self._folder.locked():
            aside = self._folder.quarantined()
            self._folder.empty_quarantine(sum(status.st_size for _, status in aside) + 1)
        return tuple(name for name, _ in aside)

    def gc(self) -> tuple[str, ...]:
        """Remove the files that writers left when they were killed, and return their names; touch nothing else."""
        with self._folder.refusing("clean up"), self._folder.locked():
            self._folder.sweep_locks()
            return self._folder.sweep()

    def verify_all(self) -> Iterator[Verdict]:
        """Read every file among the encodings, and say of each whether it may be served; nothing is moved.

        Whatever has the suffix of encodings is held to what they are; what has not is foreign, and is not opened. All
        files of one model must hold KV of one shape.
        """
        with self._folder.refusing("list"):
            paths = sorted(self._folder.encodings.iterdir()) if self._folder.encodings.exists() else []
        with self._folder.refusing("read"):
            shapes = _shapes_by_model(path for path in paths if path.name.endswith(SUFFIX))
        for path in paths:
            with self._folder.refusing("read"), suppress(FileNotFoundError):
                yield self._verdict(path, shapes)

    def trim(self) -> None:
        """Evict until the budget holds, as far as what is pinned and being written allows."""
        if self._budget is not None:
            with self._folder.refusing("evict"):
                self._budget.trim()

    def _verdict(self, path: Path, shapes: Mapping[str, Counter[KVShape]]) -> Verdict:
        nbytes = path.lstat().st_size
        if not path.name.endswith(SUFFIX):
            return Verdict(path.name, nbytes, None, foreign=True)
        return Verdict(path.name, nbytes, _fault(path, shapes, mapped=self._mmap))

    def _open(self, key: str, path: Path, identity: Identity, shape: KVShape | None) -> StoredEncoding:
        header, payload = open_encoding(path, key, mapped=self._mmap)
        if shape is not None:
            check_shape(header, shape, str(path))
        known = self._verify is Verify.NEVER or self._verified.get(key) == identity
        if not known or self._verify is Verify.ALWAYS:
            check_payload(header, payload, str(path))
            self._verified[key] = identity
        with suppress(OSError):  # a read-only folder: then only this process knows of the use
            os.utime(path, ns=(time.time_ns(), identity.modified_ns), follow_symlinks=False)
        if self._budget is not None:
            self._budget.use(key, identity.nbytes, header.recipe)
        return unpack(header, payload)

    def _set_aside(self, key: str, path: Path, identity: Identity, fault: CorruptEncoding) -> bool:
        try:
            return self._folder.set_aside(path, identity, str(fault))
        except (OSError, TierUnavailable) as error:
            fault.add_note(f"It could not be set aside and is ignored from now on: {error}")
            self._bad[key] = identity
            return True

    def _stands(self, key: str, path: Path) -> bool:
        with self._folder.refusing("read"), suppress(FileNotFoundError):
            status = path.lstat()
            return stat.S_ISREG(status.st_mode) and self._bad.get(key) != Identity.of(status)
        return False

    def _reserve(self, key: str, nbytes: int) -> Incoming | None:
        with self._folder.locked():
            self._folder.sweep()
            if self._budget is not None and not self._budget.make_room(nbytes):
                return None
            return self._folder.open_incoming(key, nbytes)


def _fault(path: Path, shapes: Mapping[str, Counter[KVShape]], *, mapped: bool) -> str | None:
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
    """Return how many files hold KV of which shape, by the fingerprint of their model; unreadable ones are left out."""
    shapes: dict[str, Counter[KVShape]] = defaultdict(Counter)
    for path in paths:
        with suppress(CorruptEncoding, FileNotFoundError):
            header = open_header(path, path.stem)
            shapes[header.recipe.fingerprint][header.shape] += 1
    return shapes
