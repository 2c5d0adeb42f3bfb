"""Buffers of copied KV: of segments that move to other positions, and of many small segments side by side.

A segment costs a fixed amount of work in every layer of every forward pass; a copy costs its bytes, once. So small
neighbours are copied into one buffer. A buffer that still holds the same parts at the same positions is used again
without copying. If there is no room for another one, one that is not in use is overwritten: copying into fresh memory
takes several times as long.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from promptcache.kv import KVHandle, Slab, Store, memory_tier
from promptcache.locks import new_lock
from promptcache.runtime.hf.model import Model
from promptcache.runtime.segments import Segment, is_parted

SMALL_TOKENS = 256
"""Segments of fewer tokens are coalesced. At this length one copy costs about as much as one more segment over the
first token and 16 more (measured on two CPU cores: docs/benchmarks.md).
"""

IDLE_BYTES = 2**30
"""Default size limit of the buffers that no request uses."""

_SMALLEST_BUFFER = 256  # tokens

_BufferContent: TypeAlias = tuple[int, tuple[tuple[str, int, int, int], ...]]
"""The state of the model, and digest, start, stop and shift of each part."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Buffer:
    """A slab and the parts that it holds."""

    slab: Slab
    content: _BufferContent


class Pool:
    """Buffers for copied segments. All methods are thread-safe. A buffer is not changed while a request uses it."""

    def __init__(self, model: Model, *, small_tokens: int = SMALL_TOKENS, idle_bytes: int = IDLE_BYTES) -> None:
        """Create an empty pool.

        Args:
            model: Its KV is copied, and its rotary embeddings move keys.
            small_tokens: Segments of fewer tokens are coalesced.
            idle_bytes: Size limit of the buffers that no request uses.
        """
        self._model = model
        self._small_tokens = small_tokens
        self._idle_limit = idle_bytes
        self._live: dict[_BufferContent, weakref.ref[KVHandle]] = {}
        self._idle: OrderedDict[_BufferContent, _Buffer] = OrderedDict()  # least recently used first
        self._idle_bytes = 0
        self._returned: deque[_Buffer] = deque()  # from finalizers, which may run while the lock is held
        self._lock = new_lock()

    @property
    def idle_bytes(self) -> int:
        """Bytes of the buffers that no request uses."""
        with self._lock:
            self._collect()
            return self._idle_bytes

    def coalesce(
        self, segments: Sequence[Segment], new_positions: Sequence[int], state: int
    ) -> tuple[tuple[Segment, ...], int]:
        """Return the segments with small neighbours copied into one, and the number of tokens that were copied.

        Shifted segments are copied, too, and their keys are moved.

        Args:
            segments: Segments of one request, in position order.
            new_positions: Positions of the new tokens, in order. Segments on both sides of one stay apart.
            state: Number of the state of the model that computed the KV.
        """
        found: list[Segment] = []
        num_copied = 0
        for group in self._groups(segments, new_positions):
            if len(group) > 1 or group[0].is_shifted:
                segment, copied = self._one(group, state)
                found.append(segment)
                num_copied += copied
            else:
                found.extend(group)
        return tuple(found), num_copied

    def move(self, segments: Sequence[Segment], state: int) -> tuple[tuple[Segment, ...], int]:
        """Return the segments with copies of shifted ones, whose keys are moved, and the number of copied tokens."""
        found, num_copied = list(segments), 0
        for index, segment in enumerate(found):
            if segment.is_shifted:
                found[index], copied = self._one([segment], state)
                num_copied += copied
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

    def _one(self, group: Sequence[Segment], state: int) -> tuple[Segment, int]:
        parts = tuple(part for segment in group for part in segment.parts)
        content = state, tuple((part.encoding.digest, part.start, part.stop, part.shift) for part in parts)
        num_tokens = sum(segment.num_tokens for segment in group)
        with self._lock:
            held, slab = self._take(content, num_tokens)
        copied = 0
        if held is None:
            slab = Slab.empty(self._model.shape, _capacity(num_tokens)) if slab is None else slab
            held = self._filled(slab, group)
            copied = num_tokens
            with self._lock:
                self._lend(held, _Buffer(slab=held.slab, content=content))
        return Segment(runs=(held,), start=0, stop=num_tokens, parts=parts), copied

    def _take(self, content: _BufferContent, num_tokens: int) -> tuple[KVHandle | None, Slab | None]:
        """Return the handle of a buffer that holds `content`, or else free memory of that size if the pool has some."""
        self._collect()
        live = self._live.get(content)
        if live is not None and (held := live()) is not None:
            return held, None
        if (buffer := self._taken(content)) is not None:
            held = KVHandle(slab=buffer.slab, start=0, stop=num_tokens)
            self._lend(held, buffer)
            return held, None
        wanted = _capacity(num_tokens)
        if self._idle_bytes + wanted * self._model.shape.token_bytes <= self._idle_limit:
            return None, None  # what idle buffers hold may be wanted again
        fitting = (each for each, buffer in self._idle.items() if wanted <= buffer.slab.capacity <= 2 * wanted)
        other = next(fitting, None)
        buffer = None if other is None else self._taken(other)
        return None, None if buffer is None else buffer.slab

    def _taken(self, content: _BufferContent) -> _Buffer | None:
        """Remove an idle buffer and return it; None if there is none with this content."""
        buffer = self._idle.pop(content, None)
        self._idle_bytes -= 0 if buffer is None else buffer.slab.nbytes
        return buffer

    def _lend(self, held: KVHandle, buffer: _Buffer) -> None:
        self._live[buffer.content] = weakref.ref(held)
        weakref.finalize(held, self._returned.append, buffer).atexit = False

    def _collect(self) -> None:
        """Take back the buffers of finished requests, and free idle buffers beyond the limit."""
        while self._returned:
            buffer = self._returned.popleft()
            live = self._live.get(buffer.content)
            if live is not None and live() is None:
                del self._live[buffer.content]
            self._taken(buffer.content)  # two threads may have copied the same
            self._idle[buffer.content] = buffer
            self._idle_bytes += buffer.slab.nbytes
        while self._idle_bytes > self._idle_limit:
            self._taken(next(iter(self._idle)))

    def _filled(self, slab: Slab, group: Sequence[Segment]) -> KVHandle:
        start = 0
        for segment in group:
            stop = start + segment.num_tokens
            keys = segment.slab.keys[:, :, segment.start : segment.stop]
            copied = slab.keys[:, :, start:stop]
            if segment.is_shifted:
                encoded, placed = segment.encoded_array(), segment.position_array()
                self._model.relocation.move(keys, torch.from_numpy(encoded), torch.from_numpy(placed), out=copied)
            else:
                copied.copy_(keys)
            slab.values[:, :, start:stop].copy_(segment.slab.values[:, :, segment.start : segment.stop])
            start = stop
        return KVHandle(slab=slab, start=0, stop=start)


def open_pool(model: Model, store: Store) -> Pool:
    """Return a pool that keeps at most a quarter of a store's memory budget, beside that budget, or `IDLE_BYTES`."""
    memory = memory_tier(store)
    if memory is None or memory.budget_bytes is None:
        return Pool(model)
    return Pool(model, idle_bytes=memory.budget_bytes // 4)


def views_only(model: Model) -> Pool:
    """Return a pool that copies nothing but shifted segments, and keeps no copy."""
    return Pool(model, small_tokens=0, idle_bytes=0)


def _capacity(num_tokens: int) -> int:
    """Return the buffer size for a number of tokens: a power of two, so that similar requests share buffers."""
    return max(_SMALLEST_BUFFER, 1 << (num_tokens - 1).bit_length())
