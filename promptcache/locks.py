"""Locks that a forked process does not inherit in a locked state.

`fork` copies a lock as it is, but only the thread that called `fork`. A lock that another thread held would stay locked
in the child for good, so the child gets its locks released.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakSet

_locks: WeakSet[Any] = WeakSet()


def new_lock() -> threading.Lock:
    """Return a `threading.Lock` that is released in forked processes."""
    lock = threading.Lock()
    _locks.add(lock)
    return lock


def new_rlock() -> threading.RLock:
    """Return a `threading.RLock` that is released in forked processes."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _release_all() -> None:
    for lock in _locks:
        lock._at_fork_reinit()  # what the standard library does with its own locks


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_release_all)
