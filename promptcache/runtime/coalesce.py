"""Buffers of copied KV: segments that move to other positions, and small segments that are joined.

A segment costs a fixed amount of work in every layer of every forward pass; a copy costs time once, by its size. So
small neighbours are copied into one buffer. A buffer that still holds the same parts at the same positions is used
again without copying.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias
from weakref import WeakValueDictionary

import torch

from promptcache.kv import Allocation, Buffers, KVHandle, Slab, Store, open_buffers
from promptcache.locks import new_lock
from promptcache.runtime.hf.model import Model
from promptcache.runtime.segments import Segment, is_parted

SMALL_TOKENS = 256
"""Segments of fewer tokens are coalesced. At this length, a copy takes about as long as attention to one more segment
does for the first token and 16 more (measured on two CPU cores: docs/benchmarks.md).
"""

DEFAULT_COPIES_BYTES = 2**30
"""Default size limit of the copies that a pool keeps."""

_BufferContent: TypeAlias = tuple[int, tuple[tuple[str, int, int, int], ...]]
"""The state of the model, and digest, start, stop and shift of each part."""


class Pool:
    """Copies of segments. All methods are thread-safe. A copy is not changed while a request uses it."""

    def __init__(self, model: Model, buffers: Buffers | None = None, *, small_tokens: int = SMALL_TOKENS) -> None:
        """Create a pool without copies.

        Args:
            model: Its KV is copied, and its rotary embeddings move keys.
            buffers: Memory for copies that later requests can use. If it is None or full, a copy gets memory of its
                own, shared by the requests that use it at the same time.
            small_tokens: Segments of fewer tokens are coalesced.
        """
        self._model = model
        self._buffers = buffers
        self._small_tokens = small_tokens
        self._kept: dict[_BufferContent, Allocation] = {}
        self._contents: dict[Allocation, _BufferContent] = {}
        self._unkept: WeakValueDictionary[_BufferContent, KVHandle] = WeakValueDictionary()
        self._lock = new_lock()

    def coalesce(
        self, segments: Sequence[Segment], new_positions: Sequence[int], state: int
    ) -> tuple[tuple[Segment, ...], int]:
        """Return the segments with small neighbours copied into one, and the number of tokens that were copied.

        Shifted segments are copied, too, and their keys are moved.

        Args:
            segments: Segments of one request, in position order.
            new_positions: Positions of the new tokens, in order. Segments on both sides of a new token are not joined.
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
        copied = 0
        if (handle := self._find(content)) is None:
            handle = self._copy(group, content, num_tokens)
            copied = num_tokens
        return Segment(handles=(handle,), start=handle.start, stop=handle.stop, parts=parts), copied

    def _find(self, content: _BufferContent) -> KVHandle | None:
        """Return the handle of a copy with this content; None if there is none."""
        with self._lock:
            kept = self._kept.get(content)
            found = None if kept is None or self._buffers is None else self._buffers.handle(kept)
            return self._unkept.get(content) if found is None else found

    def _copy(self, group: Sequence[Segment], content: _BufferContent, num_tokens: int) -> KVHandle:
        taken = None if self._buffers is None else self._buffers.take(num_tokens)
        if self._buffers is None or taken is None:
            handle = KVHandle(slab=Slab.empty(self._model.shape, num_tokens), start=0, stop=num_tokens)
            self._fill(handle, group)
            with self._lock:
                self._unkept[content] = handle
            return handle
        buffer, handle = taken
        try:
            self._fill(handle, group)
        except BaseException:
            self._buffers.drop(buffer)
            raise
        with self._lock:
            self._forget_taken(self._buffers)
            if (other := self._kept.get(content)) is not None:  # two threads have copied the same
                self._buffers.drop(other)
                del self._contents[other]
            self._kept[content] = buffer
            self._contents[buffer] = content
        return handle

    def _forget_taken(self, buffers: Buffers) -> None:
        """Forget the contents of the buffers that the store has taken back."""
        while buffers.taken_back:
            content = self._contents.pop(buffers.taken_back.popleft(), None)
            if content is not None:
                del self._kept[content]

    def _fill(self, handle: KVHandle, group: Sequence[Segment]) -> None:
        start = 0
        for segment in group:
            stop = start + segment.num_tokens
            keys = segment.slab.keys[:, :, segment.start : segment.stop]
            copied = handle.keys[:, :, start:stop]
            if segment.is_shifted:
                encoded, placed = segment.encoded_array(), segment.position_array()
                self._model.relocation.move(keys, torch.from_numpy(encoded), torch.from_numpy(placed), out=copied)
            else:
                copied.copy_(keys)
            handle.values[:, :, start:stop].copy_(segment.slab.values[:, :, segment.start : segment.stop])
            start = stop


def open_pool(model: Model, store: Store) -> Pool:
    """Return a pool that keeps copies in the memory of a store: a quarter of its budget, or `DEFAULT_COPIES_BYTES`."""
    return Pool(model, open_buffers(store, model.shape, None, DEFAULT_COPIES_BYTES))


def views_only(model: Model) -> Pool:
    """Return a pool that copies shifted segments only, and keeps no copy."""
    return Pool(model, small_tokens=0)
