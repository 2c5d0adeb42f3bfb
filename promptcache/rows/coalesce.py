"""Copies of KV: segments that move to other positions, and neighbours that are joined.

A segment costs a fixed amount of work in every layer of every forward pass; a copy costs time once, by its size. So
small neighbours are copied into one segment, and so are all neighbours of a combination that comes again. The memory
store keeps copies within its budget.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import TypeAlias, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import torch

from promptcache.attention import has_kernels
from promptcache.kv import KV, KVMemory
from promptcache.locks import new_lock
from promptcache.model import Model
from promptcache.rows.segments import Segment

SMALL_TOKENS = 256
"""Segments of fewer tokens are coalesced. At this length, a copy takes about as long as attention to one more segment
does for the first token and 16 more (measured on two CPU cores).
"""

_Result = TypeVar("_Result")

MAX_COMBINATIONS = 10_000
"""Limit of the combinations whose uses are counted, by last use."""

_COPY_COST = 1 / 64
"""Cost of copying a token in token equivalents, a choice: more than a copy takes, because most history is never used
again, and far less than computing, so that no copy takes the room of modules in use."""

_Content: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""Digest, start, stop and shift of each part."""


class Copies:
    """Copies of segments. All methods are thread-safe. A copy is not changed while a request uses it."""

    def __init__(
        self, model: Model, memory: KVMemory | None = None, *, small_tokens: int = SMALL_TOKENS, joins_at: int = 2
    ) -> None:
        """Create it without copies.

        Args:
            memory: Keeps copies for later requests. If it is None or has no room, a copy is shared by the requests that
                use it at the same time.
            small_tokens: Segments of fewer tokens are joined at once.
            joins_at: Number of the use of a combination at which all of its neighbours are joined.
        """
        self._model = model
        self._memory = memory
        self._owner = object()  # part of all keys, because engines with other models may share the store
        self._small_tokens, self._joins_at = small_tokens, joins_at
        self._num_uses: OrderedDict[int, int] = OrderedDict()  # by the hash of the content, in the order of use
        self._unkept: WeakValueDictionary[_Content, KV] = WeakValueDictionary()
        self._lock = new_lock()

    def count_use(self, segments: Sequence[Segment], new_positions: Sequence[int]) -> None:
        """Count a use of the combinations of a request; arguments are those of `coalesce`."""
        if self._memory is None:
            return
        contents = [hash(_content(run)) for run in _runs(segments, new_positions) if len(run) > 1]
        with self._lock:
            for each in contents:
                self._num_uses[each] = self._num_uses.pop(each, 0) + 1
            while len(self._num_uses) > MAX_COMBINATIONS:
                self._num_uses.popitem(last=False)

    def coalesce(self, segments: Sequence[Segment], new_positions: Sequence[int]) -> tuple[tuple[Segment, ...], int]:
        """Return the segments with neighbours joined into copies, and the number of tokens that were copied.

        Small neighbours are joined, and all neighbours of a combination that came before. Shifted segments are copied,
        too, and their keys are moved.

        Args:
            segments: Segments of one request, in position order.
            new_positions: Positions of the new tokens, in order. Segments on both sides of a new token are not joined.
        """
        found: list[Segment] = []
        num_copied = 0
        for run in _runs(segments, new_positions):
            uses = self._num_uses.get(hash(_content(run)), 0) if len(run) > 1 else 0
            joined = self._copy(run, uses, is_needed=False) if uses >= self._joins_at else None
            if joined is not None:
                found.append(joined[0])
                num_copied += joined[1]
                continue
            groups: list[list[Segment]] = []
            for is_small, some in groupby(run, key=lambda segment: segment.num_tokens < self._small_tokens):
                alike = [*some]
                groups += [alike] if is_small else [[segment] for segment in alike]
            for group in groups:
                is_copied = len(group) > 1 or group[0].is_shifted
                copy = self._copy(group, 1, is_needed=True) if is_copied else None
                segment, copied = copy or (group[0], 0)
                found.append(segment)
                num_copied += copied
        return tuple(found), num_copied

    def with_room(self, run: Callable[[], _Result]) -> _Result:
        """Return `run()`; as long as the device has no memory for it, the memory store evicts KV, and it runs again."""
        return run() if self._memory is None else self._memory.with_room(run)

    def _copy(self, group: Sequence[Segment], uses: int, *, is_needed: bool) -> tuple[Segment, int] | None:
        """Return a copy of neighbours, and the number of tokens that were copied now.

        Without room in the memory store it is None, or, if it is needed, a copy that lives as long as it is used.
        """
        content = _content(group)
        key = self._owner, content
        num_tokens = sum(segment.num_tokens for segment in group)
        num_copied, cost = 0, _COPY_COST * num_tokens
        kv = self._unkept.get(content)
        if kv is None and self._memory is not None:
            kv = self._memory.find(key)
            if kv is None and (kv := self._memory.allocate(num_tokens, cost, uses)) is not None:
                self._fill(kv, group)
                self._memory.keep(key, kv, cost, uses=uses)
                num_copied = num_tokens
        if kv is None and is_needed:
            kv = KV.empty(self._model.shape, num_tokens)
            self._fill(kv, group)
            num_copied = num_tokens
            with self._lock:
                self._unkept[content] = kv
        if kv is None:
            return None
        parts = tuple(part for segment in group for part in segment.parts)
        return Segment(kv=kv, start=0, stop=num_tokens, parts=parts), num_copied

    def _fill(self, kv: KV, group: Sequence[Segment]) -> None:
        start = 0
        for segment in group:
            stop = start + segment.num_tokens
            keys = segment.kv.keys[:, :, segment.start : segment.stop]
            copied = kv.keys[:, :, start:stop]
            if segment.is_shifted:
                own = [part.encoding.position_ids[part.start : part.stop] for part in segment.parts]
                encoded = np.concatenate([np.asarray(each, dtype=np.int64) for each in own])
                placed = torch.from_numpy(segment.position_array())
                self._model.relocation.move(keys, torch.from_numpy(encoded), placed, out=copied)
            else:
                copied.copy_(keys)
            kv.values[:, :, start:stop].copy_(segment.kv.values[:, :, segment.start : segment.stop])
            start = stop


def _runs(segments: Iterable[Segment], new_positions: Sequence[int]) -> Iterator[list[Segment]]:
    """Yield segments together that no new token lies between."""
    run: list[Segment] = []
    for segment in segments:
        if run and bisect_right(new_positions, run[-1].last) != bisect_left(new_positions, segment.first):
            yield run
            run = []
        run.append(segment)
    if run:
        yield run


def _content(group: Iterable[Segment]) -> _Content:
    parts = (part for segment in group for part in segment.parts)
    return tuple((part.encoding.digest, part.start, part.stop, part.shift) for part in parts)


def open_copies(model: Model, memory: KVMemory) -> Copies:
    """Return copies that a memory store keeps.

    On a GPU without the Triton kernels, a segment costs more launches in every layer than its copy costs once, whatever
    its length. So neighbours are joined at the first use.
    """
    shape = model.shape
    joins_at_once = shape.is_on_gpu and not has_kernels(shape, model.kernels)
    return Copies(model, memory, joins_at=1 if joins_at_once else 2)


def without_cache(model: Model) -> Copies:
    """Return what copies shifted segments only, and keeps no copy."""
    return Copies(model, small_tokens=0)
