"""Several requests in one batch: shared segments held once, and computed once for all rows that see them.

Comes in: requests with their KV. Goes out: one cache for all of them, and left-padded new tokens. Rows may differ in
selection, schema and length. What several rows reuse is found by address: their views are cut where they differ, and
each piece is attended to once, with the rows that see it folded into the query length. Small pieces that the same rows
see are coalesced as those of one request are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from promptcache.kv import KVHandle, Slab
from promptcache.layout import Encoding, RequestTokens
from promptcache.runtime.attention import ForwardMask, PositionArray, RequestPositions, SegmentMask
from promptcache.runtime.coalesce import Pool
from promptcache.runtime.hf.model import Model
from promptcache.runtime.link import segments_of
from promptcache.runtime.segments import Segment


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkedBatch:
    """Requests ready to be generated together.

    Attributes:
        cache: A transformers cache over all rows; it reports the longest row's number of cached tokens.
        token_ids: New tokens, left-padded, `[B, N]`.
        position_ids: As `token_ids`.
        num_cached: What the cache reports.
        copied_bytes: For each row the KV that had to be copied; what several share counts for the first of them.
    """

    cache: Any
    token_ids: torch.Tensor
    position_ids: torch.Tensor
    num_cached: int
    copied_bytes: tuple[int, ...]


class Piece(NamedTuple):
    """Stored KV that some rows of a batch see, and no others."""

    segment: Segment
    rows: tuple[int, ...]


class BatchPositions:
    """The positions of several requests, the rows of a batch: as `RequestPositions`, with masks that name their rows.

    Own tokens are left-padded to the longest row. Padding attends to itself, and no other token attends to it.
    """

    def __init__(
        self, rows: Sequence[RequestPositions], lengths: Sequence[int], pieces: Sequence[Piece], device: torch.device
    ) -> None:
        self.rows = tuple(rows)
        self.num_cached = max(row.num_cached for row in rows)
        self._pads = tuple(max(lengths) - length for length in lengths)
        self._device = device
        self.segments = tuple(piece.segment for piece in pieces)
        self._seen_by = tuple(piece.rows for piece in pieces)

    def forward_mask(self, num_own: int, num_queries: int, window: int | None) -> ForwardMask:
        """Return what the last `num_queries` of `num_own` own tokens attend to, row by row."""
        own = np.stack([self._own_positions(row, num_own) for row in range(len(self.rows))])  # [B, n]; -1 is padding
        queries = own[:, num_own - num_queries :]
        masks = tuple(
            self._segment_mask(segment, rows, queries[list(rows)], window)
            for segment, rows in zip(self.segments, self._seen_by, strict=True)
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
        pad = min(self._pads[row], num_own)
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
    requests: Sequence[RequestTokens], runs: Mapping[Encoding, KVHandle], model: Model, pool: Pool | None = None
) -> LinkedBatch:
    """Put the stored KV and the new tokens of several requests together.

    Args:
        requests: One for each row.
        runs: KV of at least every encoding that they have parts of.
        model: Links in segments.
        pool: Where small pieces are coalesced; None leaves them as they are.
    """
    for request in requests:
        model.check_vocabulary(request.token_ids)
    lengths = [len(request.token_ids) for request in requests]
    width = max(lengths)
    segments = [segments_of(each.parts, runs, each.position_ids) for each in requests]
    rows = [
        RequestPositions(own, each.position_ids, model.device) for own, each in zip(segments, requests, strict=True)
    ]
    pieces = tuple(shared_pieces(segments))
    copied = [0] * len(rows)
    if pool is not None:
        pieces, copied = coalesced_pieces(pieces, [request.position_ids for request in requests], pool)
    positions = BatchPositions(rows, lengths, pieces, model.device)
    # each row is filled up with a token of its own: repetition penalties go by which tokens a row has
    token_ids = [_padded(request.token_ids, width) for request in requests]
    position_ids = [_padded(request.position_ids, width) for request in requests]
    return LinkedBatch(
        cache=model.cache(positions),
        token_ids=torch.tensor(token_ids, device=model.device),
        position_ids=torch.tensor(position_ids, device=model.device),
        num_cached=positions.num_cached,
        copied_bytes=tuple(num_tokens * model.shape.token_bytes for num_tokens in copied),
    )


def _padded(row: Sequence[int], width: int) -> list[int]:
    return [row[0]] * (width - len(row)) + list(row)


def shared_pieces(rows: Sequence[Sequence[Segment]]) -> Iterator[Piece]:
    """Cut the rows' segments so that each piece is seen by the same rows throughout, and yield it with those rows.

    Every token of every row is in exactly one piece, and a piece is a view of one stretch of memory.
    """
    slabs: dict[Slab, list[tuple[int, Segment]]] = {}
    for row, segments in enumerate(rows):
        for segment in segments:
            slabs.setdefault(segment.slab, []).append((row, segment))
    for views in slabs.values():
        yield from _pieces_of_slab(views)


def coalesced_pieces(
    pieces: Sequence[Piece], new_positions: Sequence[Sequence[int]], pool: Pool
) -> tuple[tuple[Piece, ...], list[int]]:
    """Return the pieces with small ones that the same rows see as one, and for each row the tokens copied for it.

    Args:
        new_positions: For each row those of its new tokens, in order; pieces on both sides of one stay apart.
    """
    alike: dict[tuple[int, ...], list[Segment]] = {}
    for segment, rows in pieces:
        alike.setdefault(rows, []).append(segment)
    found: list[Piece] = []
    copied = [0] * len(new_positions)
    for rows, segments in alike.items():
        between = sorted({position for row in rows for position in new_positions[row]})
        fewer, num_copied = pool.coalesce(sorted(segments, key=lambda segment: segment.first), between)
        found.extend(Piece(segment, rows) for segment in fewer)
        copied[rows[0]] += num_copied
    return tuple(found), copied


def _pieces_of_slab(views: Sequence[tuple[int, Segment]]) -> Iterator[Piece]:
    """Sweep over one slab; the views of a row do not overlap."""
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
            yield Piece(_cut(segment, start, stop, places[segment]), rows)


def _cut(segment: Segment, start: int, stop: int, places: Sequence[int]) -> Segment:
    """Return the part `[start, stop)` of a segment, in tokens of its slab; its parts begin at `places`."""
    parts = []
    for index in range(bisect_right(places, start) - 1, bisect_left(places, stop)):
        part = segment.parts[index]
        offset = part.start - places[index]
        parts.append(
            replace(part, start=max(start, places[index]) + offset, stop=min(stop, places[index + 1]) + offset)
        )
    return Segment(runs=segment.runs, start=start, stop=stop, parts=tuple(parts))
