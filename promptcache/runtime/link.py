"""Linking: put stored KV and new tokens into a cache for a forward pass, for one request or a batch.

The segments of a cache are views of stored KV; nothing is copied but small segments, which a pool coalesces. In a
batch, KV that several rows reuse is attended to once per layer. Rows may differ in selection, schema and length.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from promptcache.kv import KVHandle, Slab
from promptcache.layout import Encoding, RequestTokens
from promptcache.runtime.attention import ForwardMask, PositionArray, RequestPositions, SegmentMask
from promptcache.runtime.coalesce import Pool
from promptcache.runtime.hf.model import Model
from promptcache.runtime.history import Recalled
from promptcache.runtime.segments import Segment, segments_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Linked:
    """Stored KV and new tokens of one request. The cache is private to the request; its segments are shared.

    Attributes:
        cache: A transformers cache that holds `positions.num_cached` tokens.
        token_ids: The own tokens of the request, in position order.
        position_ids: As long as `token_ids`, strictly increasing. Generation continues after the last one.
        missing: Indices of the own tokens to prefill, in order. History has the others; it never has the last one.
        copied_bytes: Bytes of KV that were copied: coalesced small segments, or all segments if the model links by
            concatenation.
    """

    cache: Any
    positions: RequestPositions
    token_ids: tuple[int, ...]
    position_ids: tuple[int, ...]
    missing: tuple[int, ...]
    copied_bytes: int

    @property
    def new_token_ids(self) -> tuple[int, ...]:
        """The tokens to prefill."""
        return tuple(self.token_ids[index] for index in self.missing)

    @property
    def new_position_ids(self) -> tuple[int, ...]:
        """As long as `new_token_ids`."""
        return tuple(self.position_ids[index] for index in self.missing)

    @property
    def num_before(self) -> int:
        """Number of the tokens to prefill that lie before a token of history."""
        first = len(self.token_ids) - len(self.missing)
        return sum(index < first + number for number, index in enumerate(self.missing))


def link(
    tokens: RequestTokens,
    runs: Mapping[Encoding, KVHandle],
    model: Model,
    pool: Pool | None = None,
    recalled: Recalled | None = None,
) -> Linked:
    """Link the stored KV of a request with its new tokens.

    Args:
        tokens: Parts and new tokens of the request.
        runs: KV of at least every encoding that the request has parts of.
        model: Chooses the kind of cache.
        pool: Buffers for small segments; None links every segment as a view.
        recalled: What history has of the request.
    """
    model.check_vocabulary(tokens.token_ids)
    missing = tuple(range(len(tokens.token_ids))) if recalled is None else recalled.missing
    new_positions = tuple(tokens.position_ids[index] for index in missing)
    coalesce = None if pool is None else partial(pool.coalesce, new_positions=new_positions)
    stored, growing = linked_segments(tokens, runs, new_positions, recalled)
    segments, num_copied = model.linking.place(stored, coalesce)
    num_given = 0 if recalled is None else recalled.num_found
    positions = RequestPositions((*segments, *growing), new_positions, model.device, num_given)
    return Linked(
        cache=model.cache(positions),
        positions=positions,
        token_ids=tokens.token_ids,
        position_ids=tokens.position_ids,
        missing=missing,
        copied_bytes=num_copied * model.shape.token_bytes,
    )


def linked_segments(
    tokens: RequestTokens,
    runs: Mapping[Encoding, KVHandle],
    new_positions: Sequence[int],
    recalled: Recalled | None = None,
) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """Return the segments of a request, in position order: those that may be coalesced, and those of its last stretch.

    The last stretch grows from request to request, for example in a conversation. A copy of it would serve once.
    """
    if recalled is None:
        return segments_of(tokens.parts, runs, new_positions), ()
    *others, last = recalled.stretches
    kept = [part for each in others for part in each.parts]
    parts = sorted((*tokens.parts, *kept), key=lambda part: part.first) if kept else tokens.parts
    stored = segments_of(parts, {**runs, **recalled.runs}, new_positions)
    return stored, segments_of(last.parts, last.runs)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkedBatch:
    """Stored KV and new tokens of several requests that are generated together.

    Attributes:
        cache: A transformers cache over all rows.
        token_ids: Own tokens, left-padded, `[B, N]`.
        position_ids: As `token_ids`.
        num_pads: For each row the number of padding tokens among those that are prefilled.
        copied_bytes: For each row the bytes of KV that were copied. Shared copies count for the first row that uses
            them.
    """

    cache: Any
    token_ids: torch.Tensor
    position_ids: torch.Tensor
    num_pads: tuple[int, ...]
    copied_bytes: tuple[int, ...]


class SharedSegment(NamedTuple):
    """A segment with the batch rows that attend to it."""

    segment: Segment
    rows: tuple[int, ...]


class BatchPositions:
    """The positions of several requests, one row each; as `RequestPositions`, with masks that name their rows.

    Own tokens are left-padded to the longest row. A padding token attends to itself only, and no other token attends
    to it.
    """

    def __init__(
        self,
        rows: Sequence[RequestPositions],
        lengths: Sequence[int],
        shared: Sequence[SharedSegment],
        device: torch.device,
        num_given: int = 0,
    ) -> None:
        self.rows = tuple(rows)
        self.num_cached = max(row.num_cached for row in rows)
        self.num_given = num_given
        self.pads = tuple(max(lengths) - length for length in lengths)
        self._device = device
        self.segments = tuple(each.segment for each in shared)
        self._rows_of = tuple(each.rows for each in shared)

    def forward_mask(self, num_own: int, num_queries: int, window: int | None) -> ForwardMask:
        """Return the mask of the last `num_queries` of `num_own` own tokens, row by row."""
        own = np.stack([self._own_positions(row, num_own) for row in range(len(self.rows))])  # [B, n]; -1 is padding
        queries = own[:, num_own - num_queries :]
        masks = tuple(
            self._segment_mask(segment, rows, queries[list(rows)], window)
            for segment, rows in zip(self.segments, self._rows_of, strict=True)
        )
        order = np.arange(num_own)
        seen = order[None, None, :] <= order[None, num_own - num_queries :, None]
        seen = seen & (own[:, None, :] >= 0)
        if window is not None:
            seen = seen & (queries[:, :, None] - own[:, None, :] < window)
        itself = order[None, None, :] == order[None, num_own - num_queries :, None]
        own_mask = torch.from_numpy(seen | itself)[:, None].to(self._device)  # [B, 1, T, n]
        return ForwardMask(segments=self.segments, masks=masks, own_mask=own_mask)

    def _own_positions(self, row: int, num_own: int) -> PositionArray:
        pad = min(self.pads[row], num_own)
        return np.concatenate([np.full(pad, -1, dtype=np.int64), self.rows[row].of_own_tokens(0, num_own - pad)])

    def _segment_mask(
        self, segment: Segment, rows: tuple[int, ...], queries: PositionArray, window: int | None
    ) -> SegmentMask | None:
        above = queries > segment.last  # [R, T]
        if not above.any():
            return None
        mask = None
        if window is not None and queries.max() - segment.first >= window:
            near = queries[:, :, None] - segment.position_array() < window
            mask = torch.from_numpy(above[:, :, None] & near).to(self._device)  # [R, T, S]
        hidden = None if above.all() else torch.from_numpy(~above).to(self._device)
        some = None if len(rows) == len(self.rows) else torch.tensor(rows, device=self._device)
        return SegmentMask(first_query=0, start=0, stop=segment.num_tokens, mask=mask, rows=some, hidden=hidden)


def link_batch(
    requests: Sequence[RequestTokens],
    runs: Mapping[Encoding, KVHandle],
    model: Model,
    pool: Pool | None = None,
    recalled: Sequence[Recalled] | None = None,
) -> LinkedBatch:
    """Link several requests with their stored KV in one cache, and left-pad their own tokens.

    Args:
        requests: One for each row.
        runs: KV of at least every encoding that they have parts of.
        model: Links in segments.
        pool: Buffers for small segments; None links every segment as a view.
        recalled: For each row what history has of its first own tokens.
    """
    for request in requests:
        model.check_vocabulary(request.token_ids)
    width = max(len(request.token_ids) for request in requests)
    known: Sequence[Recalled | None] = [None] * len(requests) if recalled is None else recalled
    num_found = [0 if each is None else each.num_found for each in known]
    new_positions = [each.position_ids[count:] for each, count in zip(requests, num_found, strict=True)]
    lengths = [len(each) for each in new_positions]
    both = [
        linked_segments(request, runs, new, found)
        for request, new, found in zip(requests, new_positions, known, strict=True)
    ]
    rows = [
        RequestPositions((*stored, *growing), new, model.device)
        for (stored, growing), new in zip(both, new_positions, strict=True)
    ]
    shared = tuple(shared_segments([stored for stored, _ in both]))
    copied = [0] * len(rows)
    if pool is not None:
        shared, copied = coalesced_segments(shared, new_positions, pool)
    shared = (*shared, *shared_segments([growing for _, growing in both]))
    positions = BatchPositions(rows, lengths, shared, model.device, num_given=width - max(lengths))
    # A row is padded with a token of its own: repetition penalties count the tokens that a row has.
    token_ids = [_padded(request.token_ids, width) for request in requests]
    position_ids = [_padded(request.position_ids, width) for request in requests]
    return LinkedBatch(
        cache=model.cache(positions),
        token_ids=torch.tensor(token_ids, device=model.device),
        position_ids=torch.tensor(position_ids, device=model.device),
        num_pads=positions.pads,
        copied_bytes=tuple(num_tokens * model.shape.token_bytes for num_tokens in copied),
    )


def _padded(row: Sequence[int], width: int) -> list[int]:
    return [row[0]] * (width - len(row)) + list(row)


def shared_segments(rows: Sequence[Sequence[Segment]]) -> Iterator[SharedSegment]:
    """Cut the rows' segments where the set of rows that use them changes, and yield each piece with its rows.

    Every token of every row is in exactly one piece. A piece is a view of one stretch of memory.
    """
    slabs: dict[Slab, list[tuple[int, Segment]]] = {}
    for row, segments in enumerate(rows):
        for segment in segments:
            slabs.setdefault(segment.slab, []).append((row, segment))
    for views in slabs.values():
        yield from _segments_of_slab(views)


def coalesced_segments(
    shared: Sequence[SharedSegment], new_positions: Sequence[Sequence[int]], pool: Pool
) -> tuple[tuple[SharedSegment, ...], list[int]]:
    """Coalesce small segments that the same rows use.

    Args:
        new_positions: For each row the positions of its new tokens, in order. Segments on both sides of one stay apart.

    Returns:
        The segments, and for each row the number of tokens copied for it.
    """
    alike: dict[tuple[int, ...], list[Segment]] = {}
    for segment, rows in shared:
        alike.setdefault(rows, []).append(segment)
    found: list[SharedSegment] = []
    copied = [0] * len(new_positions)
    for rows, segments in alike.items():
        between = sorted({position for row in rows for position in new_positions[row]})
        fewer, num_copied = pool.coalesce(sorted(segments, key=lambda segment: segment.first), between)
        found.extend(SharedSegment(segment, rows) for segment in fewer)
        copied[rows[0]] += num_copied
    return tuple(found), copied


def _segments_of_slab(views: Sequence[tuple[int, Segment]]) -> Iterator[SharedSegment]:
    """Sweep over one slab. The views of one row do not overlap."""
    beginning: dict[int, list[tuple[int, Segment]]] = {}
    for row, segment in views:
        beginning.setdefault(segment.start, []).append((row, segment))
    edges = sorted({*beginning, *(segment.stop for _, segment in views)})
    places: dict[Segment, list[int]] = {}  # of the parts of a segment that is cut
    seen: dict[int, Segment] = {}
    for start, stop in pairwise(edges):
        seen = {row: segment for row, segment in seen.items() if segment.stop > start}
        seen.update(beginning.get(start, ()))
        if seen:
            rows = tuple(sorted(seen))
            segment = seen[rows[0]]
            if segment not in places:
                sizes = (part.stop - part.start for part in segment.parts)
                places[segment] = list(accumulate(sizes, initial=segment.start))
            yield SharedSegment(_cut(segment, start, stop, places[segment]), rows)


def _cut(segment: Segment, start: int, stop: int, places: Sequence[int]) -> Segment:
    """Return the part `[start, stop)` of a segment, in tokens of its slab. Its parts begin at `places`."""
    parts = []
    for index in range(bisect_right(places, start) - 1, bisect_left(places, stop)):
        part = segment.parts[index]
        offset = part.start - places[index]
        parts.append(
            replace(part, start=max(start, places[index]) + offset, stop=min(stop, places[index + 1]) + offset)
        )
    return Segment(runs=segment.runs, start=start, stop=stop, parts=tuple(parts))
