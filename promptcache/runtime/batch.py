"""Several requests in one batch: shared segments held once, and computed once for all rows that see them.

Comes in: plans with their KV. Goes out: one cache for all of them, and left-padded new tokens. Rows may differ in
selection, schema and length. What several rows reuse is found by address: their views are cut where they differ, and
each piece is attended to once, with the rows that see it folded into the query length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from promptcache.kv.types import RunKV
from promptcache.layout.types import Plan
from promptcache.runtime.hf.model import Model
from promptcache.runtime.link import new_tokens, segments_of
from promptcache.runtime.segments import Part, Positions, Segment, Sight, Sights, Timeline


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkedBatch:
    """Requests ready to be generated together.

    Attributes:
        cache: A transformers cache over all rows; it reports the longest row's number of cached tokens.
        token_ids: New tokens, left-padded, `[B, N]`.
        position_ids: As `token_ids`.
        num_cached: What the cache reports.
    """

    cache: Any
    token_ids: torch.Tensor
    position_ids: torch.Tensor
    num_cached: int


class BatchTimeline:
    """The timelines of several rows as one: as `Timeline`, with rows that see and rows that do not.

    Own tokens are left-padded to the longest row; padding sees nothing but itself and is seen by nobody.
    """

    def __init__(self, rows: Sequence[Timeline], lengths: Sequence[int], device: torch.device) -> None:
        self.rows = tuple(rows)
        self.num_cached = max(row.num_cached for row in rows)
        self._pads = tuple(max(lengths) - length for length in lengths)
        self._device = device
        pieces = tuple(shared_pieces([row.segments for row in rows]))
        self.segments = tuple(segment for segment, _ in pieces)
        self._seen_by = tuple(seen_by for _, seen_by in pieces)
        self._latest: dict[int | None, tuple[tuple[int, int], Sights]] = {}

    def sights(self, num_own: int, num_queries: int, window: int | None) -> Sights:
        """Return what the last `num_queries` of `num_own` own tokens see, row by row; computed once per forward."""
        known = self._latest.get(window)
        if known is None or known[0] != (num_own, num_queries):
            known = ((num_own, num_queries), self._look(num_own, num_queries, window))
            self._latest[window] = known
        return known[1]

    def _look(self, num_own: int, num_queries: int, window: int | None) -> Sights:
        own = np.stack([self._own_positions(row, num_own) for row in range(len(self.rows))])  # [B, n]; -1 is padding
        queries = own[:, num_own - num_queries :]
        sights = tuple(
            self._look_at(segment, rows, queries[list(rows)], window)
            for segment, rows in zip(self.segments, self._seen_by, strict=True)
        )
        order = np.arange(num_own)
        seen = order[None, None, :] <= order[None, num_own - num_queries :, None]
        seen = seen & (own[:, None, :] >= 0)
        if window is not None:
            seen = seen & (queries[:, :, None] - own[:, None, :] < window)
        itself = order[None, None, :] == order[None, num_own - num_queries :, None]
        mask = torch.from_numpy(seen | itself)[:, None].to(self._device)  # [B, 1, T, n]
        return Sights(segments=self.segments, seen=sights, tail_mask=mask)

    def _own_positions(self, row: int, num_own: int) -> Positions:
        pad = min(self._pads[row], num_own)
        return np.concatenate([np.full(pad, -1, dtype=np.int64), self.rows[row].positions(0, num_own - pad)])

    def _look_at(self, segment: Segment, rows: tuple[int, ...], queries: Positions, window: int | None) -> Sight | None:
        seen = queries > segment.last  # [R, T]
        if not seen.any():
            return None
        mask = None
        if window is not None and queries.max() - segment.first >= window:
            near = queries[:, :, None] - segment.position_array() < window
            mask = torch.from_numpy(seen[:, :, None] & near).to(self._device)  # [R, T, S]
        unseen = None if seen.all() else torch.from_numpy(~seen).to(self._device)
        some = None if len(rows) == len(self.rows) else torch.tensor(rows, device=self._device)
        return Sight(first_row=0, start=0, stop=segment.num_tokens, mask=mask, rows=some, unseen=unseen)


def link_batch(plans: Sequence[Plan], runs: Sequence[Mapping[int, RunKV]], model: Model) -> LinkedBatch:
    """Put the stored KV and the new tokens of several plans together.

    Args:
        plans: One for each row.
        runs: For each row, KV by encoding index.
        model: Links in segments.
    """
    fed = [new_tokens(plan) for plan in plans]
    for token_ids, _ in fed:
        model.check_vocabulary(token_ids)
    width = max(len(token_ids) for token_ids, _ in fed)
    rows = [
        Timeline(segments_of(plan, each), positions, model.device)
        for plan, each, (_, positions) in zip(plans, runs, fed, strict=True)
    ]
    timeline = BatchTimeline(rows, [len(token_ids) for token_ids, _ in fed], model.device)
    # each row is filled up with a token of its own: repetition penalties go by which tokens a row has
    rows_of_ids = [[each[0]] * (width - len(each)) + list(each) for each, _ in fed]
    positions = [[each[0]] * (width - len(each)) + list(each) for _, each in fed]
    return LinkedBatch(
        cache=model.cache(timeline),
        token_ids=torch.tensor(rows_of_ids, device=model.device),
        position_ids=torch.tensor(positions, device=model.device),
        num_cached=timeline.num_cached,
    )


def shared_pieces(rows: Sequence[Sequence[Segment]]) -> Iterator[tuple[Segment, tuple[int, ...]]]:
    """Cut the rows' segments so that each piece is seen by the same rows throughout, and yield it with those rows.

    Every token of every row is in exactly one piece, and a piece is a view of one stretch of memory.
    """
    slabs: dict[int, list[tuple[int, Segment]]] = {}
    for row, segments in enumerate(rows):
        for segment in segments:
            slabs.setdefault(id(segment.slab), []).append((row, segment))
    for views in slabs.values():
        edges = sorted({edge for _, segment in views for edge in (segment.start, segment.stop)})
        for start, stop in pairwise(edges):
            covering = [(row, segment) for row, segment in views if segment.start <= start and stop <= segment.stop]
            if covering:
                yield _cut(covering[0][1], start, stop), tuple(row for row, _ in covering)


def _cut(segment: Segment, start: int, stop: int) -> Segment:
    """Return the part `[start, stop)` of a segment, in tokens of its slab."""
    parts = []
    place = segment.start
    for part in segment.parts:
        low, high = max(start, place), min(stop, place + part.stop - part.start)
        if low < high:
            offset = part.start - place
            parts.append(Part(part.encoding, low + offset, high + offset))
        place += part.stop - part.start
    return Segment(runs=segment.runs, start=start, stop=stop, parts=tuple(parts))
