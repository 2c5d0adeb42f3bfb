"""Operations on tiers that may fail: which faults are reported and which are logged.

A fault of a tier never fails a request. How long a tier that does not answer is left alone is decided by that tier.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from promptcache.diagnostics import CorruptEncoding, TierUnavailable
from promptcache.kv.faults import Faults
from promptcache.kv.files.blob_tier import BlobTier
from promptcache.locks import new_lock

_log = logging.getLogger(__name__)

T = TypeVar("T")


class TierHealth:
    """Which tiers fail at present; any thread may call any method."""

    def __init__(self) -> None:
        self._failing: set[tuple[str, BlobTier]] = set()
        self._lock = new_lock()

    def attempt(self, what: str, tier: BlobTier, action: Callable[[], T], faults: Faults) -> T | None:
        """Run an operation on a tier and return its result; None and a sentence in `faults` if it fails.

        A bad file is logged, and it is set aside, so it is met once. A tier that does not answer is logged when it
        begins to fail at this, and again only after it has worked in between.

        Args:
            what: "read" or "write": a full disk can be read.
        """
        try:
            result = action()
        except CorruptEncoding as fault:
            _log.warning("%s", fault)
            faults.add(f"{tier.kind}: {fault}")
            return None
        except TierUnavailable as fault:
            with self._lock:
                is_new = (what, tier) not in self._failing
                self._failing.add((what, tier))
            if is_new:
                _log.warning("%s", fault)
            faults.add(f"{tier.kind}: {fault}")
            return None
        if self._failing:
            with self._lock:
                self._failing.discard((what, tier))
        return result
