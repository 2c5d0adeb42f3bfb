"""Leases: claims under a URL, as small files that their holders renew.

A lease is expired when a waiter has seen the same content for the whole length of the lease, by the waiter's own clock.
Clocks of two machines are never compared. Where files can be created exclusively, at most one claimant holds a key.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, Protocol

from promptcache.diagnostics import TierUnavailable
from promptcache.kv.store import OnWait, go_on

LEASE_S = 20.0
"""Default length of a lease. If a holder has died, others wait at most this long."""

_RENEWALS = 4  # in the length of a lease
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0  # between two looks at the lease of another claimant
_TRIES = 2  # a second fault in a row ends the attempt
_LONGEST_LEASE_S = 600.0  # a file that says more is damaged
_ID = re.compile("[0-9a-f]{32}")


class LeaseFiles(Protocol):
    """The folder of leases. Each method may raise `TierUnavailable`, also after the change was made."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it does not exist."""

    def create(self, name: str, content: bytes) -> bool:
        """Create a file and return True, or return False if it exists."""

    def replace(self, name: str, content: bytes) -> None:
        """Write a file, whether it exists or not."""

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""


class Lease:
    """The attempt of one claimant to hold a key, and its lease.

    The first lease of a key is the file `KEY`. The claimant that takes over the lease with the id `A` creates the file
    `KEY.A`, so each lease has at most one successor. The end of this chain is the lease that counts. A release deletes
    the chain, `KEY` first. Files left after an error belong to no lease.

    Args:
        files: The folder of leases.
        key: The claimed key.
        length_s: Length of the lease.
        clock: Seconds by a clock of this process.
    """

    def __init__(
        self,
        files: LeaseFiles,
        key: str,
        length_s: float = LEASE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = files
        self._key = key
        self._length_s = length_s
        self._clock = clock
        self._id = ""
        self._created = ""  # file of the latest attempt, until a read has shown its result
        self._owner = f"{platform.node()}:{os.getpid()}"
        self._num_renewals = 0
        self._chain: tuple[str, ...] = ()  # files from the first lease to this one, while it is held
        self._safe_until = 0.0

    @property
    def is_safe(self) -> bool:
        """Whether the lease is held and cannot have been taken over yet, by the clock of this process."""
        return bool(self._chain) and self._clock() < self._safe_until

    def wait(self, timeout_s: float, on_wait: OnWait = go_on) -> bool:
        """Acquire the lease and return whether it is held. A timeout of 0 tries once.

        Args:
            timeout_s: Seconds to wait for another claimant.
            on_wait: Called before each operation and pause, unless the timeout is 0. If it raises, the wait ends.

        Raises:
            TierUnavailable: The folder of leases did not answer.
        """
        deadline = self._clock() + timeout_s
        try:
            for pause_s in self.acquire():
                left_s = deadline - self._clock()
                if timeout_s > 0 or pause_s > 0:
                    if left_s <= 0:
                        return False
                    on_wait()
                time.sleep(min(pause_s, max(left_s, 0.0)))
            return True
        finally:
            if not self._chain:
                with contextlib.suppress(TierUnavailable):
                    deque(self._withdraw(), maxlen=0)

    def acquire(self) -> Generator[float, None, None]:
        """Acquire the lease. Yields the seconds to wait before the next operation, and ends when the lease is held.

        Raises:
            TierUnavailable: The folder of leases did not answer.
        """
        seen: bytes | None = None
        since, pause_s, num_faults = 0.0, _FIRST_PAUSE_S, 0
        started, refused = 0.0, ""  # the time of the latest attempt, and the file that it could not create
        while True:
            try:
                looked = self._clock()
                chain, content = yield from self._last_lease()
                if content is not None and _id(chain[-1], content) == self._id and self._hold(chain, started):
                    return
                if self._created not in chain:
                    yield from self._withdraw()
                self._created = ""
                if content is None:
                    name = self._key
                elif content == seen and looked - since >= _length_s(content, self._length_s):
                    name = f"{self._key}.{_id(chain[-1], content)}"
                else:
                    if content != seen:
                        seen, since = content, self._clock()
                    left_s = since + _length_s(content, self._length_s) - self._clock()
                    yield min(pause_s, max(left_s, _FIRST_PAUSE_S / 10))
                    pause_s, num_faults = min(1.5 * pause_s, _LONGEST_PAUSE_S), 0
                    continue
                self._id = uuid.uuid4().hex  # one for each file, so that a chain has no circle
                yield _FIRST_PAUSE_S if name == refused else 0.0  # a damaged folder stays as it is
                self._created, started = name, self._clock()
                is_new = self._files.create(name, self._content())
                if is_new and name == self._key and self._hold((name,), started):
                    return
                refused = "" if is_new else name
                num_faults = 0  # the next look shows which claimant holds the key
            except TierUnavailable:
                num_faults += 1
                if num_faults == _TRIES:
                    with contextlib.suppress(TierUnavailable):
                        yield from self._withdraw()
                    raise

    @contextlib.contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the held lease in a thread, and release it at the end of the context.

        Raises:
            TierUnavailable: The lease could not be removed. It expires.
        """
        done = threading.Event()
        thread = threading.Thread(target=self._renew_until, args=(done,), daemon=True, name="promptcache lease")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            self.release()

    def renew(self) -> bool:
        """Renew the lease. Returns False if it may have been taken over; it is not held any more then."""
        started = self._clock()
        if not self.is_safe:
            return False
        self._num_renewals += 1
        self._files.replace(self._chain[-1], self._content())
        self._safe_until = started + self._length_s
        return True

    def release(self) -> None:
        """Remove the lease and the expired ones before it. A lease that may have been taken over stays.

        Raises:
            TierUnavailable: A file could not be removed. The lease expires.
        """
        for name in self._chain if self.is_safe else ():
            self._remove(name)
        self._chain = ()

    def _hold(self, chain: tuple[str, ...], started: float) -> bool:
        """Hold a lease whose creation began at `started`, unless it ran out while this process was stopped."""
        if self._clock() >= started + self._length_s:
            return False
        self._chain, self._safe_until = chain, started + self._length_s
        return True

    def _last_lease(self) -> Generator[float, None, tuple[tuple[str, ...], bytes | None]]:
        """Return the files of the chain and the content of the last one, or None if there is no lease."""
        name, chain, last = self._key, list[str](), None
        while True:
            yield 0.0
            content = self._files.read(name)
            if content is None or name in chain:
                return tuple(chain), last
            chain.append(name)
            last = content
            name = f"{self._key}.{_id(name, content)}"

    def _withdraw(self) -> Generator[float, None, None]:
        """Remove the file of an attempt that failed, if it is there and of this claimant."""
        name, self._created = self._created, ""
        yield 0.0
        content = self._files.read(name) if name else None
        if content is not None and _id(name, content) == self._id:
            yield 0.0
            self._remove(name)

    def _remove(self, name: str) -> None:
        """Remove a file of the chain. After a fault, another claimant may have created its first file again."""
        try:
            self._files.remove(name)
        except TierUnavailable:
            content = self._files.read(name)
            ids = (self._id, *(each.rpartition(".")[2] for each in self._chain))
            if content is not None and _id(name, content) in ids:
                self._files.remove(name)

    def _renew_until(self, done: threading.Event) -> None:
        while not done.wait(self._length_s / _RENEWALS):
            with contextlib.suppress(TierUnavailable):  # tried again, as long as the lease is safe
                if not self.renew():
                    return

    def _content(self) -> bytes:
        lease = {"id": self._id, "owner": self._owner, "lease_s": self._length_s, "renewals": self._num_renewals}
        return json.dumps(lease).encode()


def _fields(content: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        fields = None
    return fields if isinstance(fields, dict) else {}


def _id(name: str, content: bytes) -> str:
    """Return the id of a lease. A damaged file, or one that is being written, has the digest of its name and content.

    The name is in the digest because equal contents would otherwise make a chain a circle.
    """
    written = _fields(content).get("id")
    if isinstance(written, str) and _ID.fullmatch(written):
        return written
    return hashlib.sha256(name.encode() + content).hexdigest()[:32]


def _length_s(content: bytes, default_s: float) -> float:
    written = _fields(content).get("lease_s")
    return written if isinstance(written, int | float) and 0 < written <= _LONGEST_LEASE_S else default_s
