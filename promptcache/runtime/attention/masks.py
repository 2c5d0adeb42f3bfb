"""The masks of a forward pass, computed from positions alone.

A query attends to itself and to keys at lower positions. Own tokens are in position order, and no own token lies
between the tokens of a segment. A suffix of the queries therefore attends to a whole segment, and a mask is needed
only where a sliding window ends inside it. Masks are computed and kept on the host; backends move them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from promptcache.kv import LayerViews, Slab

PositionArray: TypeAlias = npt.NDArray[np.int64]


class KVView(Protocol):
    """A view of stored KV in one slab: the properties of a segment that attention needs."""

    @property
    def slab(self) -> Slab:
        """The slab of the view."""

    @property
    def start(self) -> int:
        """The first token of the view, counted from the start of the slab."""

    @property
    def stop(self) -> int:
        """The end of the view."""

    @property
    def num_tokens(self) -> int:
        """The number of tokens in view."""

    @property
    def first(self) -> int:
        """The lowest position."""

    @property
    def last(self) -> int:
        """The highest position."""

    def position_array(self) -> PositionArray:
        """Return all positions, `[T]`, strictly increasing."""

    def layers(self, start: int = 0, stop: int | None = None) -> LayerViews:
        """Return views of the keys and values `[1, Hkv, T, D]` of every layer, of tokens `[start, stop)` if given."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentMask:
    """The queries that attend to a segment, and the keys that they attend to.

    Queries from `first_query` on attend to keys `[start, stop)`, or to those of them that `mask` marks.

    Attributes:
        first_query: Counted among the tokens of a batch row.
        start, stop: Tokens of the segment; the queries attend to no others.
        mask: Bool on the host, True where a query attends to a key; None means everywhere. `[T', S]` for all batch
            rows, or `[R, 1, S]` for rows of single tokens.
        rows: Indices of the R batch rows that attend, of single tokens; None means all.
    """

    first_query: int
    start: int
    stop: int
    mask: torch.Tensor | None = None
    rows: npt.NDArray[np.intp] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether every query of every row attends to every key from `start` to `stop`."""
        return self.first_query == 0 and self.mask is None and self.rows is None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardPositions:
    """The positions that the masks of a forward pass were computed from.

    Attributes:
        queries: `[T]`.
        own: `[n]`, those of all own tokens. The queries are the last of them.
        window: A query attends to keys less than this many positions before it; None means all.
    """

    queries: PositionArray
    own: PositionArray
    window: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardMask:
    """The masks of one forward pass.

    Attributes:
        segments: The segments of stored KV.
        masks: One for each segment; None if no query attends to it.
        own_mask: Bool `[T, n]` on the host, over the n own tokens; None means causal by index.
        positions: Says the same as the masks. Backends may compute from them; None means that there are only masks.
    """

    segments: tuple[KVView, ...]
    masks: tuple[SegmentMask | None, ...]
    own_mask: torch.Tensor | None
    positions: ForwardPositions | None = None

    @property
    def is_whole(self) -> bool:
        """Whether every query attends to all cached tokens, and to the own tokens up to itself."""
        return self.own_mask is None and all(mask is not None and mask.is_whole for mask in self.masks)


class Positions(Protocol):
    """The positions of stored and own tokens of a request."""

    @property
    def segments(self) -> Sequence[KVView]:
        """The segments of stored KV."""

    @property
    def num_cached(self) -> int:
        """The number of tokens in segments."""

    def forward_mask(self, num_own: int, num_queries: int, window: int | None) -> ForwardMask:
        """Return the mask of the last `num_queries` of `num_own` own tokens."""


class RequestPositions:
    """The positions of one request's own tokens, and the masks of forward passes over them.

    The first own tokens have the planned positions. Each later one follows the token before it. Own tokens that are
    in segments do not count here.
    """

    def __init__(self, segments: Sequence[KVView], planned: Sequence[int]) -> None:
        assert all(low < high for low, high in pairwise(planned)), "own tokens are in position order"
        self.segments = tuple(segments)
        self.num_cached = sum(segment.num_tokens for segment in segments)
        self._planned = np.asarray(planned, dtype=np.int64)
        self._arrays: dict[int, PositionArray] = {}

    def of_own_tokens(self, start: int, stop: int) -> PositionArray:
        """Return the positions of own tokens `[start, stop)`."""
        planned = self._planned
        beyond = np.arange(max(start, len(planned)), max(stop, len(planned)), dtype=np.int64) - len(planned)
        following = (planned[-1] + 1 if len(planned) else 0) + beyond
        return np.concatenate([planned[start:stop], following])

    def forward_mask(self, num_own: int, num_queries: int, window: int | None) -> ForwardMask:
        """Return the mask of the last `num_queries` of `num_own` own tokens."""
        own = self.of_own_tokens(0, num_own)
        queries = own[num_own - num_queries :]
        masks = tuple(self._segment_mask(index, queries, window) for index in range(len(self.segments)))
        own_mask = None
        if window is not None and queries[-1] - own[0] >= window:
            order = np.arange(num_own)
            seen = (order <= order[num_own - num_queries :, None]) & (queries[:, None] - own < window)
            own_mask = torch.from_numpy(seen)
        positions = ForwardPositions(queries=queries, own=own, window=window)
        return ForwardMask(segments=self.segments, masks=masks, own_mask=own_mask, positions=positions)

    def _segment_mask(self, index: int, queries: PositionArray, window: int | None) -> SegmentMask | None:
        segment = self.segments[index]
        first_query = int(np.searchsorted(queries, segment.last))
        if first_query == len(queries):
            return None
        if window is None or queries[-1] - segment.first < window:
            return SegmentMask(first_query=first_query, start=0, stop=segment.num_tokens)
        keys = self._arrays.setdefault(index, segment.position_array())
        queries = queries[first_query:]
        start = int(np.searchsorted(keys, queries[0] - window, side="right"))
        if start == len(keys):
            return None
        near = queries[:, None] - keys[start:] < window
        mask = None if near.all() else torch.from_numpy(near)
        return SegmentMask(first_query=first_query, start=start, stop=len(keys), mask=mask)
