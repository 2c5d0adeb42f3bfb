"""The interface of tiers that store encodings as bytes, on disk or under a URL.

A blob tier knows no arenas and no devices. `kv/codec.py` turns KV into a `StoredEncoding` and back.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum

from promptcache.diagnostics import TierUnavailable
from promptcache.kv.codec import StoredEncoding
from promptcache.kv.store import OnWait, Tier, go_on
from promptcache.kv.types import KVShape


class Verify(StrEnum):
    """When the checksum of a payload in a folder is verified. Headers are always verified."""

    FIRST = "first"
    ALWAYS = "always"
    NEVER = "never"


class BlobTier(ABC):
    """Stored encodings by key. Safe for threads and for several processes at once.

    Every method may raise `TierUnavailable`: the tier does not answer in time, cannot be read, is full or is
    read-only. A method that raises has changed nothing, as far as the tier can tell. The default methods suit a tier
    that evicts nothing and has no locks.

    Attributes:
        kind: Tier that a lookup reports.
        max_parallel_reads: Number of concurrent calls of `read` that are useful.
        opening_fault: Why the tier did not answer when it was opened; None if it did.
    """

    kind: Tier
    max_parallel_reads: int = 1
    opening_fault: TierUnavailable | None = None

    @abstractmethod
    def read(self, key: str, shape: KVShape | None = None) -> StoredEncoding | None:
        """Return the stored encoding of `key`, or None.

        Args:
            key: Key of the encoding.
            shape: Required shape of the KV, on any device. None accepts every shape.

        Raises:
            CorruptEncoding: The file does not match its key, or its KV has another shape. It was moved to
                quarantine, so the next `read` returns None.
        """

    @abstractmethod
    def write(self, stored: StoredEncoding) -> bool:
        """Store an encoding. An encoding that is stored already stays.

        Returns:
            Whether the encoding is stored now. False: it does not fit into the budget.
        """

    @abstractmethod
    def probe(self) -> None:
        """Check that the tier can be written now. Nothing is left behind.

        Raises:
            TierUnavailable: It cannot, with the reason.
        """

    @abstractmethod
    def delete(self, key: str) -> bool:
        """Delete `key` and return whether it was stored. Tensors that were read stay valid."""

    @abstractmethod
    def keys(self) -> Iterator[str]:
        """Yield the keys that are stored now, without those that are known to be corrupt."""

    @abstractmethod
    def nbytes(self) -> int:
        """Return the bytes of all encodings, headers included."""

    def signatures(self, fingerprint: str) -> BlobTier | None:
        """Return the tier with the recorded signatures of a fingerprint; None if this tier records none.

        They are no encodings of this tier.
        """
        return None

    def claim(self, key: str, timeout_s: float, on_wait: OnWait = go_on) -> AbstractContextManager[bool]:
        """Return a context in which no other thread or process computes `key`.

        Entering it waits for another holder, at most `timeout_s`. Call `read` again afterwards, because that holder may
        have written the encoding. A claim only saves work; answers are correct without it.

        Args:
            key: Key of the encoding.
            timeout_s: Seconds to wait for another holder.
            on_wait: Called about once a second while another holder is waited for. If it raises, the wait ends.

        Yields:
            False if another holder is still there after the timeout. True if the claim is held, or if this tier has no
            locks.
        """
        return nullcontext(True)


def signature_folder(fingerprint: str) -> str:
    """Return the folder of a fingerprint's signatures, in the folder of a tier."""
    return f"signatures/{hashlib.sha256(fingerprint.encode()).hexdigest()}"


def write_signature(tier: BlobTier, signature: StoredEncoding) -> None:
    """Record a signature beside the encodings of a tier."""
    place = tier.signatures(signature.recipe.fingerprint)
    if place is not None:
        place.write(signature)
