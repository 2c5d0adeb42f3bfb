"""Attention of one step: a forward pass `[1, T]` whose T tokens belong to any number of requests.

Each token is a row of its own, so the kernel calls over stored KV and the merge are those of a batch. Own KV is
attended to in kernel calls of two kinds: one for all requests with a single new token whose tails share a slab, and one
for each request with several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from promptcache.kv import LayerViews
from promptcache.runtime.attention.backend import AttentionCall, AttentionSpec
from promptcache.runtime.attention.grouped_queries import GroupedQueries
from promptcache.runtime.attention.kernel_calls import Kernel, KernelAttention
from promptcache.runtime.attention.masks import ForwardMask, KVView, PositionArray, SegmentMask
from promptcache.runtime.attention.merge import PartialAttention, merge
from promptcache.runtime.attention.segmented_attention import choose_kernel

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


class StepKernelAttention(KernelAttention):
    """Attention of one step by kernel calls, the same in every layer with one window."""

    def __init__(self, tokens: StepTokens, window: int | None, queries: GroupedQueries, kernel: Kernel) -> None:
        """Prepare a step; `queries` has T rows of one token each."""
        mask = tokens.mask(window)
        super().__init__(mask.stored, queries, kernel, tokens.device)
        self._chunks = tuple(zip(tokens.chunks, map(self._prepared_mask, mask.chunks), strict=True))
        self._tails = tuple(
            (group, self._prepared_mask(self._by_group(each)), self._some(group, tokens.device))
            for group, each in zip(tokens.groups, mask.tails, strict=True)
        )

    def run(self, layer: int, call: AttentionCall) -> torch.Tensor:
        """Return the attention of one layer, `[1, T, Hq, D]`. Tails hold the keys and values of the call already."""
        queries = self._queries
        own = [
            *(self._attend_tails(call, layer, group, mask, some) for group, mask, some in self._tails),
            *(self._attend_chunk(call, chunk, mask) for chunk, mask in self._chunks),
        ]
        out, lse = own[0] if len(own) == 1 else (torch.cat(parts, dim=2) for parts in zip(*own, strict=True))
        stored = self._attend_stored(queries.group(call.query.transpose(0, 2)), layer, call.scale)
        partials = [PartialAttention(out, lse), *stored]
        return queries.ungroup(merge(partials, queries, call.sinks)).transpose(0, 1)

    def _attend_tails(
        self, call: AttentionCall, layer: int, group: TailGroup, mask: Any, some: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend from one token of each request to its tail; heads of a group are queries over the same keys."""
        keys, values = group.views.by_layer[layer]  # [R, Hkv, S, D]
        heads, groups = self._queries.num_kv_heads, self._queries.num_groups
        chosen = call.query[0, :, group.start : group.stop]
        rows = chosen.reshape(heads, groups, *chosen.shape[1:]).permute(2, 0, 1, 3)
        if some is not None:
            rows = rows.new_zeros((len(keys), *rows.shape[1:])).index_copy_(0, some, rows)
        out, lse = self._attend_masked(rows, keys, values, call.scale, mask)  # [R, Hkv, G, D]
        if some is not None:
            out, lse = out.index_select(0, some), lse.index_select(0, some)
        return out.transpose(0, 1).flatten(1, 2)[None], lse.transpose(0, 1).flatten(1, 2)[None]

    def _attend_chunk(self, call: AttentionCall, chunk: RowChunk, mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend among the new tokens of one request."""
        query, keys, values = (states[:, :, chunk.start : chunk.stop] for states in call[:3])
        queries = GroupedQueries.of(query, keys.shape[1])
        out, lse = self._attend_masked(query, keys, values, call.scale, mask, causal=mask is None)
        return queries.group(out), queries.group_lse(lse)

    def _by_group(self, mask: torch.Tensor | None) -> torch.Tensor | None:
        return None if mask is None else mask.expand(-1, -1, self._queries.num_groups, -1)

    @staticmethod
    def _some(group: TailGroup, device: torch.device) -> torch.Tensor | None:
        """Return the indices of the tails in use, or None if all are."""
        is_all = len(group.indices) == len(group.views.by_layer[0][0])
        return None if is_all else torch.tensor(group.indices, device=device)


class StepAttention:
    """Attention over the tokens of one step, in all layers. It is prepared once for each window."""

    def __init__(self, tokens: StepTokens) -> None:
        self.tokens = tokens
        self._prepared: dict[int | None, StepKernelAttention] = {}

    def run(self, layer: int, call: AttentionCall) -> torch.Tensor:
        """Return the attention of one layer, `[1, T, Hq, D]`. All layers have the same soft cap."""
        prepared = self._prepared.get(call.window)
        if prepared is None:
            # T rows of one token each
            spec = AttentionSpec.of(call.query.transpose(0, 2), call.keys.shape[1], call.softcap)
            prepared = StepKernelAttention(self.tokens, call.window, spec.queries, choose_kernel(spec))
            self._prepared[call.window] = prepared
        return prepared.run(layer, call)


def padded_positions(rows: Sequence[PositionArray]) -> PositionArray:
    """Return positions of several tails as one array `[R, S]`, padded with `UNUSED_POSITION`."""
    padded = np.full((len(rows), max(len(row) for row in rows)), UNUSED_POSITION, dtype=np.int64)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded
