"""Asking shelves that may fail: what is told of it, and what is logged.

Comes in: something to do on a shelf. Goes out: its result, or none and a sentence that says why. This file knows no
keys; how long to leave a shelf alone that does not answer is the shelf's own affair.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from promptcache.diagnostics import CorruptEncoding, TierUnavailable
from promptcache.kv.shelf import Shelf
from promptcache.locks import new_lock

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Attempts:
    """What has failed so far; any thread may call any method."""

    def __init__(self) -> None:
        self._failing: set[tuple[str, Shelf]] = set()
        self._untold: dict[str, None] = {}
        self._lock = new_lock()

    def make(self, what: str, shelf: Shelf, action: Callable[[], T]) -> tuple[T | None, str | None]:
        """Do something on a shelf; return its result and None, or None and what went wrong.

        A bad file is logged, and it is set aside, so it is met once. A shelf that does not answer is logged when it
        begins to fail at this, and again only after it has worked in between.

        Args:
            what: "read" or "write": a full disk can be read.
        """
        try:
            result = action()
        except CorruptEncoding as fault:
            _log.warning("%s", fault)
            return None, f"{shelf.tier}: {fault}"
        except TierUnavailable as fault:
            with self._lock:
                is_new = (what, shelf) not in self._failing
                self._failing.add((what, shelf))
            if is_new:
                _log.warning("%s", fault)
            return None, f"{shelf.tier}: {fault}"
        if self._failing:
            with self._lock:
                self._failing.discard((what, shelf))
        return result, None

    def tell_later(self, faults: Iterable[str]) -> None:
        """Keep sentences for the next lookup."""
        with self._lock:
            self._untold.update(dict.fromkeys(faults))

    def untold(self) -> tuple[str, ...]:
        """Return what nobody was told yet."""
        if not self._untold:
            return ()
        with self._lock:
            told, self._untold = tuple(self._untold), {}
            return told
