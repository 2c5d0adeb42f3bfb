"""Which files of a tier's folder go when room is needed.

Comes in: a folder, what its files may take together, and every use of one. Goes out: room. Other processes write, use
and remove files, too, so what is there is counted anew each time, with the folder locked. This file reads headers, to
know what a file would cost to make again; it opens no payload.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from promptcache.diagnostics import CorruptEncoding
from promptcache.kv.eviction import Cost, GreedyDual
from promptcache.kv.files.folder import Folder
from promptcache.kv.files.reading import open_header
from promptcache.kv.keys import Recipe
from promptcache.locks import new_lock


class DiskBudget:
    """A limit in bytes on encodings, files being written and files set aside together; any thread may call any method.

    Args:
        cost: What it takes to make an encoding again.
    """

    def __init__(self, folder: Folder, budget_bytes: int, cost: Cost) -> None:
        self._folder = folder
        self._budget_bytes = budget_bytes
        self._cost = cost
        self._uses = GreedyDual()
        self._sizes: dict[str, int] = {}  # of what `_uses` knows
        self._lock = new_lock()  # guards both

    def use(self, key: str, nbytes: int, recipe: Recipe) -> None:
        """Note a use of a file."""
        with self._lock:
            if key not in self._uses:
                self._sizes[key] = nbytes
                self._uses.add(key, nbytes, self._cost(recipe))
            self._uses.touch(key)

    def make_room(self, nbytes: int) -> bool:
        """Evict until `nbytes` more fit; evict nothing, and return False, where they cannot.

        Call this with the folder locked.
        """
        with self._lock:
            return self._make_room(nbytes)

    def trim(self) -> None:
        """Evict until the budget holds, as far as what is pinned and being written allows."""
        with self._folder.locked(), self._lock:
            if not self._make_room(0):
                self._evict(tuple(self._uses.ranked()))

    def _make_room(self, nbytes: int) -> bool:
        incoming_bytes = self._folder.incoming_bytes()  # first: what is published meanwhile counts twice, not never
        files = self._folder.scan()
        aside_bytes = sum(status.st_size for _, status in self._folder.quarantined())
        used_bytes = sum(status.st_size for status in files.values())
        needed = used_bytes + incoming_bytes + aside_bytes + nbytes - self._budget_bytes
        if needed <= 0:
            return True
        self._follow(files)
        victims = self._uses.victims(needed - aside_bytes, lambda _: False)
        if victims is None:
            return False
        self._folder.empty_quarantine(needed)
        self._evict(victims)
        return True

    def _evict(self, victims: Sequence[str]) -> None:
        for key in victims:
            self._folder.path(key).unlink(missing_ok=True)  # who holds it keeps it
            del self._sizes[key]
        self._uses.evict(victims)

    def _follow(self, files: Mapping[str, os.stat_result]) -> None:
        """Learn what other processes wrote, removed and pinned."""
        for key in [key for key, size in self._sizes.items() if key not in files or files[key].st_size != size]:
            del self._sizes[key]
            self._uses.remove(key)
        for key in sorted(files.keys() - self._sizes.keys(), key=lambda key: files[key].st_atime_ns):
            self._sizes[key] = files[key].st_size
            self._uses.add(key, max(1, files[key].st_size), self._cost_of(key))
        pinned = self._folder.pinned()
        self._uses.unpin(self._uses.pinned - pinned)
        self._uses.pin(pinned)

    def _cost_of(self, key: str) -> float:
        try:
            return self._cost(open_header(self._folder.path(key), key).recipe)
        except (CorruptEncoding, OSError):
            return 0.0  # nothing is lost with it
