"""Locks that are free in a forked process.

`fork` copies all locks but only the calling thread. So the child releases every lock.
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
        lock._at_fork_reinit()  # the standard library does the same with its locks


if hasattr(os, "register_at_fork"):  # Windows does not have it
    os.register_at_fork(after_in_child=_release_all)
