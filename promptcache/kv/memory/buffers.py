"""Buffers: ranges of a memory store that their owner fills token by token. History keeps its KV in them.

Buffers take free room or that of other buffers, and never evict an encoding. The store takes buffers back when an
encoding needs the room. On a GPU without a budget, each buffer has memory of its own, and goes back when the device has
no more memory.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

import torch

from promptcache.kv.memory.arena import Allocation
from promptcache.kv.types import KVHandle, KVShape, size_class


class Buffers:
    """Buffers of one owner, least recently used first. Thread-safe.

    `MemoryStore.buffers` makes them. A buffer is an `Allocation`. It is live while its `kept` is set.
    """

    def __init__(
        self,
        shape: KVShape,
        limit_bytes: int,
        lock: AbstractContextManager[object],
        victims: Callable[[int, Iterable[Allocation]], Sequence[Allocation] | None],
        allocate: Callable[[int], tuple[Allocation, KVHandle]],
        drop_idle: Callable[[], bool],
        *,
        has_classes: bool,
    ) -> None:
        """Create an empty set of buffers.

        Args:
            shape: Shape of the KV.
            limit_bytes: Limit of all live buffers together.
            lock: Lock of the store.
            victims: Returns the buffers to drop to get room for a number of tokens. It takes the buffers in order of
                eviction. None if all of them do not suffice.
            allocate: Takes a number of tokens from the free room of the store.
            drop_idle: Frees the buffers of all owners that are not in use; returns whether memory was freed.
            has_classes: Whether all buffers have sizes of `size_class`.
        """
        self.shape, self.limit_bytes = shape, limit_bytes
        self.taken_back: deque[Allocation] = deque()
        """Buffers that are no longer live. The owner forgets their contents."""
        self._lock = lock
        self._victims, self._allocate, self.drop_idle = victims, allocate, drop_idle
        self._has_classes = has_classes
        self._live: dict[Allocation, None] = {}
        weakref.finalize(self, _abandon, self._live).atexit = False

    def __iter__(self) -> Iterator[Allocation]:
        """Yield the live buffers, least recently used first. The lock of the store is held."""
        yield from self._live

    @property
    def nbytes(self) -> int:
        """Bytes of all live buffers, the room that is not filled yet included."""
        return sum(each.range.size for each in tuple(self._live)) * self.shape.token_bytes

    def take(self, num_tokens: int) -> tuple[Allocation, KVHandle] | None:
        """Return a new buffer with its handle; None if there is no room. Other buffers that are not in use make room.

        The buffer has room for at least `num_tokens` tokens. Its memory has the KV of earlier tokens in it, or nothing.
        Without room, no buffer is dropped, unless the device has no memory.
        """
        if self._has_classes:
            num_tokens = size_class(num_tokens)
        max_tokens = self.limit_bytes // self.shape.token_bytes - num_tokens  # of all other buffers
        with self._lock:
            if sum(each.range.size for each in self._live if each.in_use) > max_tokens:
                return None
            victims = self._victims(num_tokens, self._live)
            if victims is None:
                return None
            for each in victims:
                self.drop(each)
            while sum(each.range.size for each in self._live) > max_tokens:
                self.drop(next(each for each in self._live if not each.in_use))
            try:
                found = self._allocate(num_tokens)
            except torch.OutOfMemoryError:
                return None
            found[0].kept = True
            self._live[found[0]] = None
            return found

    def handle(self, buffer: Allocation) -> KVHandle | None:
        """Return the handle of a buffer and mark it as used; None if it is no longer live."""
        with self._lock:
            if not buffer.kept:
                return None
            del self._live[buffer]
            self._live[buffer] = None
            return buffer.handle()

    def drop(self, buffer: Allocation) -> None:
        """Free a buffer. Requests that use it keep its memory."""
        with self._lock:
            if buffer.kept:
                del self._live[buffer]
                buffer.kept = False
                buffer.block.release(buffer)
                self.taken_back.append(buffer)

    def clear(self) -> None:
        """Free all buffers."""
        with self._lock:
            for buffer in tuple(self._live):
                self.drop(buffer)


def _abandon(live: dict[Allocation, None]) -> None:
    """Let the store collect the buffers of an owner that is gone. The garbage collector calls this at any moment."""
    for buffer in live:
        buffer.kept = False
        buffer.block.unused.append(buffer)
