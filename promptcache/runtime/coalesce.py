"""Coalescing: many small segments copied into one, where that costs less than attending to each by itself.

Comes in: the segments of a request. Goes out: fewer segments. Every segment costs a fixed amount of work in every layer
of every forward pass; copying costs by the byte, once. Buffers come from a pool, for fresh memory costs several times
what copying into warm memory does, and a buffer that still holds what is asked for is used as it is: a selection that
was linked before is linked again without copying. This file knows no store and no model.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from promptcache.kv import KVHandle, KVShape, Slab
from promptcache.locks import new_lock
from promptcache.runtime.segments import Segment, is_parted

SMALL_TOKENS = 256
"""Segments of fewer tokens are coalesced: about where one copy costs what attending to one more segment does over the
first token and 16 more (measured on two CPU cores: docs/benchmarks.md)."""

IDLE_BYTES = 256 * 2**20
"""Buffers that no request uses are kept up to this size."""

_SMALLEST_BUFFER = 256  # tokens

_Content: TypeAlias = tuple[tuple[str, int, int, int], ...]  # digest, start, stop and shift of each part


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Buffer:
    """A slab with what it holds."""

    slab: Slab
    content: _Content


class Pool:
    """Buffers for coalesced segments. Any thread may use it; a buffer is never changed while a request holds it."""

    def __init__(self, shape: KVShape, *, small_tokens: int = SMALL_TOKENS, idle_bytes: int = IDLE_BYTES) -> None:
        """Start empty.

        Args:
            shape: Of the KV.
            small_tokens: Segments of fewer tokens are coalesced.
            idle_bytes: Kept of buffers that no request uses.
        """
        self._shape = shape
        self._small_tokens = small_tokens
        self._idle_limit = idle_bytes
        self._live: dict[_Content, weakref.ref[KVHandle]] = {}
        self._idle: OrderedDict[_Content, _Buffer] = OrderedDict()  # the one used longest ago first
        self._returned: deque[_Buffer] = deque()  # from finalizers, which may run while the lock is held
        self._lock = new_lock()

    @property
    def idle_bytes(self) -> int:
        """Bytes of buffers that no request uses."""
        with self._lock:
            return sum(buffer.slab.nbytes for buffer in (*self._idle.values(), *self._returned))

    def coalesce(self, segments: Sequence[Segment], new_positions: Sequence[int]) -> tuple[tuple[Segment, ...], int]:
        """Return the segments with small neighbours as one, and how many tokens had to be copied for it.

        Args:
            segments: Of one request, in position order.
            new_positions: Of new tokens, in order; segments on both sides of one stay apart.
        """
        found: list[Segment] = []
        num_copied = 0
        for group in self._groups(segments, new_positions):
            if len(group) > 1:
                segment, copied = self._one(group)
                found.append(segment)
                num_copied += copied
            else:
                found.extend(group)
        return tuple(found), num_copied

    def _groups(self, segments: Sequence[Segment], new_positions: Sequence[int]) -> Iterator[list[Segment]]:
        group: list[Segment] = []
        for segment in segments:
            small = segment.num_tokens < self._small_tokens
            if group and (not small or is_parted(group[-1].last, segment.first, new_positions)):
                yield group
                group = []
            if small:
                group.append(segment)
            else:
                yield [segment]
        if group:
            yield group

    def _one(self, group: Sequence[Segment]) -> tuple[Segment, int]:
        parts = tuple(part for segment in group for part in segment.parts)
        content = tuple((part.encoding.digest, part.start, part.stop, part.shift) for part in parts)
        num_tokens = sum(segment.num_tokens for segment in group)
        with self._lock:
            held, slab = self._take(content, num_tokens)
        copied = 0
        if held is None:
            slab = Slab.empty(self._shape, _capacity(num_tokens)) if slab is None else slab
            held = _filled(slab, group)
            copied = num_tokens
            with self._lock:
                self._lend(held, _Buffer(slab=held.slab, content=content))
        return Segment(runs=(held,), start=0, stop=num_tokens, parts=parts), copied

    def _take(self, content: _Content, num_tokens: int) -> tuple[KVHandle | None, Slab | None]:
        """Return a buffer that holds `content`, or memory for it, if there is any."""
        self._collect()
        live = self._live.get(content)
        if live is not None and (held := live()) is not None:
            return held, None
        if (buffer := self._idle.pop(content, None)) is not None:
            held = KVHandle(slab=buffer.slab, start=0, stop=num_tokens)
            self._lend(held, buffer)
            return held, None
        wanted = _capacity(num_tokens)
        for other, buffer in self._idle.items():
            if wanted <= buffer.slab.capacity <= 2 * wanted:
                return None, self._idle.pop(other).slab
        return None, None

    def _lend(self, held: KVHandle, buffer: _Buffer) -> None:
        self._live[buffer.content] = weakref.ref(held)
        weakref.finalize(held, self._returned.append, buffer).atexit = False

    def _collect(self) -> None:
        """Take back what requests have let go of, and give memory back beyond what may lie idle."""
        while self._returned:
            buffer = self._returned.popleft()
            live = self._live.get(buffer.content)
            if live is not None and live() is None:
                del self._live[buffer.content]
            self._idle[buffer.content] = buffer
        while sum(buffer.slab.nbytes for buffer in self._idle.values()) > self._idle_limit:
            self._idle.popitem(last=False)


def _filled(slab: Slab, group: Sequence[Segment]) -> KVHandle:
    start = 0
    for segment in group:
        stop = start + segment.num_tokens
        slab.keys[:, :, start:stop].copy_(segment.slab.keys[:, :, segment.start : segment.stop])
        slab.values[:, :, start:stop].copy_(segment.slab.values[:, :, segment.start : segment.stop])
        start = stop
    return KVHandle(slab=slab, start=0, stop=start)


def _capacity(num_tokens: int) -> int:
    """Return a power of two, so that a buffer serves requests of like size."""
    return max(_SMALLEST_BUFFER, 1 << (num_tokens - 1).bit_length())
