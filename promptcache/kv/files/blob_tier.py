"""The interface of tiers that keep encodings as files: in a folder, under a URL, or in a place of your own.

A tier moves bytes. The store packs an encoding into bytes with a checksum, verifies it at every read, and deletes what
does not match.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import BinaryIO

from promptcache.diagnostics import TierUnavailable
from promptcache.kv.types import Tier


class BlobTier(ABC):
    """Files by key. Subclass it to keep KV in a place of your own, and give an instance as `store=`.

    A key is 64 hexadecimal digits, and a file never changes: a second write of a key has the same KV. Methods may be
    called from several threads. Whatever a method raises is a fault of the tier. It is logged and listed in
    `usage.faults`, and costs no answer.

    Attributes:
        kind: Tier that a lookup reports.
        max_parallel_reads: Number of concurrent calls of `read` that are useful.
        has_locks: Whether `try_lock` locks keys against other processes.
        opening_fault: Why the tier did not answer when it was opened; None if it did.
    """

    kind: Tier = Tier.REMOTE
    max_parallel_reads: int = 1
    has_locks: bool = False
    opening_fault: TierUnavailable | None = None

    def __str__(self) -> str:
        return type(self).__name__

    @abstractmethod
    def read(self, key: str) -> bytes | BinaryIO | None:
        """Return the content of the file of `key`, or the open file, which is then mapped and closed; or None."""

    @abstractmethod
    def write(self, key: str, data: bytes) -> None:
        """Store a file under `key`, so that no reader sees a part of it. A tier without room stores nothing."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete the file of `key`, if there is one. Bytes that were read stay valid."""

    @abstractmethod
    def keys(self) -> Iterable[str]:
        """Return the keys of all files."""

    def nbytes(self) -> int:
        """Return the bytes of all files. The default, 0, suits tiers that are asked over a network."""
        return 0

    def probe(self) -> None:
        """Check that the tier answers. A tier may check that it can be written. Nothing is left behind."""
        self.read("0" * 64)

    def try_lock(self, key: str, timeout_s: float) -> Callable[[], object] | None:
        """Lock `key` against other processes and return what unlocks it; None if another holds it until the timeout.

        A lock only saves work. The default is a tier without locks.
        """
        return lambda: None
