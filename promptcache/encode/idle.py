"""A thread that works while no request uses the model. It stops within one layer when a request arrives."""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from promptcache.locks import new_lock
from promptcache.rows import StopCheck

QUIET_S = 0.05
"""Seconds without a request after which work begins."""

_PROCESS_ID = os.getpid()
_OMP_PAUSE_SOFT = 1  # OpenMP 5.0


class Interrupted(Exception):
    """A request arrived during work in idle time, or the work is to end."""


class Activity:
    """Whether requests use a model now: one is active inside of `with activity`. Thread-safe.

    Attributes:
        num_arrivals: Changes with each request that arrives.
    """

    def __init__(self) -> None:
        self.num_arrivals = 0
        self._num_active = 0
        self._last = time.monotonic()
        self._lock = new_lock()

    def arrived(self) -> None:
        """Note that a request arrived: work in idle time is interrupted."""
        self.num_arrivals += 1
        self._last = time.monotonic()

    def __enter__(self) -> None:
        self.arrived()
        with self._lock:
            self._num_active += 1

    def __exit__(self, *_error: object) -> None:
        with self._lock:
            self._num_active -= 1
        self._last = time.monotonic()

    def quiet_in_s(self) -> float:
        """Return the seconds until work may begin if no request arrives; 0 if it may begin now."""
        return QUIET_S if self._num_active else max(0.0, self._last + QUIET_S - time.monotonic())


class IdleThread:
    """A thread that calls a method of an object again and again in idle time, until it returns False.

    The thread runs only while there is work, and it does not keep the object alive.
    """

    def __init__(self, work: Callable[[StopCheck], bool], activity: Activity) -> None:
        """Create a thread that is not started.

        Args:
            work: A bound method. It does one piece of work, and returns whether there is more. It calls its argument
                often, and lets `Interrupted` pass.
        """
        self._work = weakref.WeakMethod(work)
        self._activity = activity
        self._thread: threading.Thread | None = None
        self._has_work = False
        self._is_over = threading.Event()
        self._lock = new_lock()
        # At exit, the interpreter aborts if a thread is inside torch.
        weakref.finalize(work.__self__, self.end)  # type: ignore[attr-defined] # a bound method

    def start(self) -> None:
        """Let the thread work, if it does not."""
        with self._lock:
            self._has_work = True
            if self._is_over.is_set() or (self._thread is not None and self._thread.is_alive()):
                return
            thread = threading.Thread(target=self._run, name="promptcache-idle", daemon=True)
            with suppress(RuntimeError):  # no thread can be started; the request that calls this needs none
                thread.start()
                self._thread = thread

    def end(self) -> None:
        """Interrupt the work and wait for the thread. It is not started again."""
        self._is_over.set()
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._has_work:
                    self._thread = None  # the next `start` starts another one
                    return
                self._has_work = False
            while self._works():
                pass

    def _works(self) -> bool:
        """Wait until no request is active, and do a piece of work; return whether there may be more."""
        num_arrivals = self._activity.num_arrivals
        while wait_s := self._activity.quiet_in_s():
            if self._is_over.wait(wait_s):
                return False
            num_arrivals = self._activity.num_arrivals
        work = self._work()
        if work is None or self._is_over.is_set():
            return False

        def check() -> None:
            if self._activity.num_arrivals != num_arrivals or self._is_over.is_set():
                raise Interrupted

        try:
            return bool(work(check))
        except Interrupted:
            return True
        finally:
            end_helping_threads()


def end_helping_threads() -> None:
    """End the threads of GNU's OpenMP that PyTorch started for the calling one; the next operation starts others.

    While those of all callers are more than the cores, they sleep after each operation, which slows the steps of small
    models down. So a thread that has computed for another one ends its own. A forked process has none to end, and
    OpenMP would wait for them.
    """
    openmp = _openmp() if os.getpid() == _PROCESS_ID else None
    if openmp is not None:
        openmp.omp_pause_resource_all(_OMP_PAUSE_SOFT)


@cache
def _openmp() -> ctypes.CDLL | None:
    """Return GNU's OpenMP, if it comes with PyTorch."""
    paths = Path(torch.__file__).parent.glob("lib/libgomp*")
    return next((ctypes.CDLL(str(path)) for path in paths), None)
