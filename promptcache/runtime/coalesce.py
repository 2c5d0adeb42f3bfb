"""Buffers of copied KV: segments that move to other positions, and small segments that are joined.

A segment costs a fixed amount of work in every layer of every forward pass; a copy costs time once, by its size. So
small neighbours are copied into one buffer. A buffer that still holds the same parts at the same positions is used
again without copying.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TypeAlias, TypeVar
from weakref import WeakValueDictionary

import torch

from promptcache.kv import Allocation, Buffers, KVHandle, Slab, Store, open_buffers, size_class
from promptcache.layout import KVPart
from promptcache.locks import new_lock
from promptcache.runtime.attention import has_kernels
from promptcache.runtime.hf.model import Model
from promptcache.runtime.segments import Segment, is_parted

SMALL_TOKENS = 256
"""Segments of fewer tokens are coalesced. At this length, a copy takes about as long as attention to one more segment
does for the first token and 16 more (measured on two CPU cores: docs/benchmarks.md).
"""

_Result = TypeVar("_Result")

DEFAULT_COPIES_BYTES = 2**30
"""Default size limit of the copies that a pool keeps."""

_BufferContent: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""Digest, start, stop and shift of each part."""


class Pool:
    """Copies of segments. All methods are thread-safe. A copy is not changed while a request uses it."""

    def __init__(
        self,
        model: Model,
        buffers: Buffers | None = None,
        *,
        small_tokens: int = SMALL_TOKENS,
        joins_large: bool = False,
    ) -> None:
        """Create a pool without copies.

        Args:
            model: Its KV is copied, and its rotary embeddings move keys.
            buffers: Memory for copies that later requests can use. If it is None or full, a copy gets memory of its
                own, shared by the requests that use it at the same time.
            small_tokens: Segments of fewer tokens are coalesced.
            joins_large: Coalesce all neighbours for which the buffers have room.
        """
        self._model = model
        self._buffers = buffers
        self._small_tokens, self._joins_large = small_tokens, joins_large
        self._in_buffers: dict[_BufferContent, Allocation] = {}
        self._contents: dict[Allocation, _BufferContent] = {}
        self._unkept: WeakValueDictionary[_BufferContent, KVHandle] = WeakValueDictionary()
        self._lock = new_lock()

    def coalesce(self, segments: Sequence[Segment], new_positions: Sequence[int]) -> tuple[tuple[Segment, ...], int]:
        """Return the segments with small neighbours copied into one, and the number of tokens that were copied.

        Shifted segments are copied, too, and their keys are moved.

        Args:
            segments: Segments of one request, in position order.
            new_positions: Positions of the new tokens, in order. Segments on both sides of a new token are not joined.
        """
        found: list[tuple[Segment, int]] = []
        for run in _runs(segments, new_positions):
            whole = self._kept(run) if self._joins_large and len(run) > 1 else None
            if whole is not None:
                found.append(whole)
                continue
            for group in self._groups(run):
                is_copied = len(group) > 1 or group[0].is_shifted
                found.append(self._one(group) if is_copied else (group[0], 0))
        return tuple(segment for segment, _ in found), sum(copied for _, copied in found)

    def move(self, segments: Sequence[Segment]) -> tuple[tuple[Segment, ...], int]:
        """Return the segments with copies of shifted ones, whose keys are moved, and the number of copied tokens."""
        found, num_copied = list(segments), 0
        for index, segment in enumerate(found):
            if segment.is_shifted:
                found[index], copied = self._one([segment])
                num_copied += copied
        return tuple(found), num_copied

    def with_room(self, run: Callable[[], _Result]) -> _Result:
        """Run a function; if the device has no memory for it, free copies and history that are idle, and run it again.

        Raises:
            torch.OutOfMemoryError: They do not suffice, or their memory belongs to a budget and is never freed.
        """
        try:
            return run()
        except torch.OutOfMemoryError:
            if self._buffers is None or not self._buffers.drop_idle():
                raise
        return run()  # outside of the clause, whose traceback holds the tensors of the first time

    def _groups(self, run: Sequence[Segment]) -> Iterator[list[Segment]]:
        """Yield small neighbours together, and each large segment alone."""
        for is_small, group in groupby(run, key=lambda segment: segment.num_tokens < self._small_tokens):
            members = [*group]
            yield from [members] if is_small else ([segment] for segment in members)

    def _one(self, group: Sequence[Segment]) -> tuple[Segment, int]:
        """Return a segment with copies of others, and the number of tokens that were copied now."""
        if (kept := self._kept(group)) is not None:
            return kept
        content, num_tokens = _content(group), _num_tokens(group)
        if (handle := self._unkept.get(content)) is not None:
            return _segment(handle, group), 0
        shape = self._model.shape
        size = size_class(num_tokens) if shape.is_on_gpu else num_tokens
        handle = KVHandle(slab=Slab.empty(shape, size), start=0, stop=num_tokens)
        self._fill(handle, group)
        with self._lock:
            self._unkept[content] = handle
        return _segment(handle, group), num_tokens

    def _kept(self, group: Sequence[Segment]) -> tuple[Segment, int] | None:
        """As `_one`, with a copy in the buffers; None if they have no room."""
        content = _content(group)
        if (handle := self._find(content)) is not None:
            return _segment(handle, group), 0
        if self._buffers is None or content in self._unkept:
            return None
        handle = self._copy(self._buffers, group, content)
        return None if handle is None else (_segment(handle, group), _num_tokens(group))

    def _find(self, content: _BufferContent) -> KVHandle | None:
        """Return the handle of the copy with this content in the buffers; None if there is none."""
        with self._lock:
            kept = self._in_buffers.get(content)
            return None if kept is None or self._buffers is None else self._buffers.handle(kept)

    def _copy(self, buffers: Buffers, group: Sequence[Segment], content: _BufferContent) -> KVHandle | None:
        """Copy segments to a buffer; None if there is no room."""
        taken = buffers.take(_num_tokens(group))
        if taken is None:
            return None
        buffer, handle = taken
        try:
            self._fill(handle, group)
        except BaseException:
            buffers.drop(buffer)
            raise
        with self._lock:
            self._forget_taken(buffers)
            if (other := self._in_buffers.get(content)) is not None:  # two threads have copied the same
                buffers.drop(other)
                del self._contents[other]
            self._in_buffers[content] = buffer
            self._contents[buffer] = content
        return handle

    def _forget_taken(self, buffers: Buffers) -> None:
        """Forget the contents of the buffers that the store has taken back."""
        while buffers.taken_back:
            content = self._contents.pop(buffers.taken_back.popleft(), None)
            if content is not None:
                del self._in_buffers[content]

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


def _runs(segments: Iterable[Segment], new_positions: Sequence[int]) -> Iterator[list[Segment]]:
    """Yield segments together that no new token lies between."""
    run: list[Segment] = []
    for segment in segments:
        if run and is_parted(run[-1].last, segment.first, new_positions):
            yield run
            run = []
        run.append(segment)
    if run:
        yield run


def _content(group: Iterable[Segment]) -> _BufferContent:
    parts = (part for segment in group for part in segment.parts)
    return tuple((part.encoding.digest, part.start, part.stop, part.shift) for part in parts)


def _num_tokens(group: Iterable[Segment | KVPart]) -> int:
    return sum(segment.num_tokens for segment in group)


def _segment(handle: KVHandle, group: Iterable[Segment]) -> Segment:
    """Return the segment of a copy of others."""
    parts = tuple(part for segment in group for part in segment.parts)
    return Segment(handles=(handle,), start=handle.start, stop=handle.start + _num_tokens(parts), parts=parts)


def open_pool(model: Model, store: Store) -> Pool:
    """Return a pool that keeps copies in the memory of a store: a quarter of its budget, or `DEFAULT_COPIES_BYTES`.

    On a GPU without the Triton kernels, a segment costs more launches in every layer than its copy costs once, whatever
    its length. The limit of the copies is also that of the memory they take.
    """
    shape = model.shape
    joins_large = shape.is_on_gpu and not has_kernels(shape.dtype, shape.head_dim, shape.device)
    return Pool(model, open_buffers(store, shape, None, DEFAULT_COPIES_BYTES), joins_large=joins_large)


def views_only(model: Model) -> Pool:
    """Return a pool that copies shifted segments only, and keeps no copy."""
    return Pool(model, small_tokens=0)
