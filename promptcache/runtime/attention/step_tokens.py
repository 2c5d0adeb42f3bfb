"""The tokens of one step, the KV that they attend to, and their masks.

A step is a forward pass `[1, T]` whose T tokens belong to any number of requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from promptcache.kv import LayerViews
from promptcache.runtime.attention.masks import ForwardMask, KVView, PositionArray, SegmentMask

UNUSED_POSITION = np.iinfo(np.int64).max
"""The position of tail memory without a token: no token attends to it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TailGroup:
    """Requests with one new token each, whose own KV lies in one slab.

    Attributes:
        start, stop: Their tokens in the step, one for each request.
        views: Memory of their own KV, the new tokens included, `[R, Hkv, S, D]`. Tails of requests that have no token
            in the step may lie between.
        indices: The tail of each request among the R tails, increasing.
        positions: Positions of the own tokens, `[stop - start, S]`; `UNUSED_POSITION` behind the last one.
    """

    start: int
    stop: int
    views: LayerViews
    indices: tuple[int, ...]
    positions: PositionArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowChunk:
    """Several new tokens `[start, stop)` of one request, in position order; `older` are its own tokens before them."""

    start: int
    stop: int
    older: KVView | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepMask:
    """The masks of one step.

    Attributes:
        stored: Masks over stored KV and over the older own tokens of chunks. Its batch rows are the T tokens.
        tails: For each tail group, bool `[R, 1, 1, S]` on the host; None if every request attends to its whole tail.
        chunks: For each chunk, bool `[n, n]` on the host; None means causal by index.
    """

    stored: ForwardMask
    tails: tuple[torch.Tensor | None, ...]
    chunks: tuple[torch.Tensor | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTokens:
    """The tokens of one step, with all KV that they attend to. They are in the order of groups, then of chunks.

    Attributes:
        segments: The stored KV of all requests. No token lies between the tokens of a segment.
        users: Bool `[number of segments, T]`, whether the request of a token uses a segment.
        positions: `[T]`.
        groups, chunks: Together they hold each token once.
    """

    segments: tuple[KVView, ...]
    users: npt.NDArray[np.bool_]
    positions: PositionArray
    groups: tuple[TailGroup, ...]
    chunks: tuple[RowChunk, ...]
    device: torch.device

    def mask(self, window: int | None) -> StepMask:
        """Return the masks: a token attends to itself and to lower positions of its own request."""
        above = np.array([segment.last for segment in self.segments])[:, None] < self.positions  # [segments, T]
        masks = [
            self._segment_mask(segment, np.flatnonzero(seen), window)
            for segment, seen in zip(self.segments, self.users & above, strict=True)
        ]
        older = [(each.older, np.arange(each.start, each.stop)) for each in self.chunks if each.older is not None]
        masks += [self._segment_mask(view, tokens, window) for view, tokens in older]
        segments = (*self.segments, *(view for view, _ in older))
        return StepMask(
            stored=ForwardMask(segments=segments, masks=tuple(masks), own_mask=None),
            tails=tuple(self._tail_mask(group, window) for group in self.groups),
            chunks=tuple(self._chunk_mask(chunk, window) for chunk in self.chunks),
        )

    def _segment_mask(self, view: KVView, tokens: npt.NDArray[np.intp], window: int | None) -> SegmentMask | None:
        """Return the mask of a view for `tokens`, which are above all of its positions."""
        start, near = 0, None
        if window is not None and len(tokens):
            tokens = tokens[self.positions[tokens] - view.last < window]
            if len(tokens) and self.positions[tokens].max() - view.first >= window:
                queries, keys = self.positions[tokens], view.position_array()
                start = int(np.searchsorted(keys, queries.min() - window, side="right"))
                inside = queries[:, None, None] - keys[start:] < window  # [R, 1, S]
                near = None if inside.all() else torch.from_numpy(inside)
        if not len(tokens):
            return None
        rows = None if len(tokens) == len(self.positions) else tokens
        return SegmentMask(first_query=0, start=start, stop=view.num_tokens, mask=near, rows=rows)

    def _tail_mask(self, group: TailGroup, window: int | None) -> torch.Tensor | None:
        queries = self.positions[group.start : group.stop, None]
        seen = group.positions <= queries
        if window is not None:
            seen &= queries - group.positions < window
        num_tails = len(group.views.by_layer[0][0])
        if num_tails == len(group.indices) and seen.all():
            return None
        mask = np.zeros((num_tails, 1, 1, seen.shape[1]), dtype=np.bool_)
        mask[list(group.indices), 0, 0] = seen
        return torch.from_numpy(mask)

    def _chunk_mask(self, chunk: RowChunk, window: int | None) -> torch.Tensor | None:
        own = self.positions[chunk.start : chunk.stop]
        if window is None or own[-1] - own[0] < window:
            return None
        distance = own[:, None] - own
        return torch.from_numpy((distance >= 0) & (distance < window))


def padded_positions(rows: Sequence[PositionArray]) -> PositionArray:
    """Return positions of several tails as one array `[R, S]`, padded with `UNUSED_POSITION`."""
    padded = np.full((len(rows), max(len(row) for row in rows)), UNUSED_POSITION, dtype=np.int64)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded
