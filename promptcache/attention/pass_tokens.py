"""The tokens of one forward pass, the KV that they attend to, and their masks, computed from positions alone.

A pass has T tokens `[1, T]` of any number of rows. A token attends to itself and to lower positions of its own row. No
token of a row lies between the tokens of a segment that the row uses, so a mask is needed only where a sliding window
ends inside it. Masks are computed and kept on the host; backends move them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from promptcache.kv import KV, LayerViews

PositionArray: TypeAlias = npt.NDArray[np.int64]

UNUSED_POSITION = np.iinfo(np.int64).max
"""The position of tail memory without a token: no token attends to it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KVView(ABC):
    """A view of tokens `[start, stop)` of stored KV."""

    kv: KV
    start: int
    stop: int

    @property
    def num_tokens(self) -> int:
        """The number of tokens in view."""
        return self.stop - self.start

    @property
    def first(self) -> int:
        """The lowest position."""
        return int(self.position_array()[0])

    @property
    def last(self) -> int:
        """The highest position."""
        return int(self.position_array()[-1])

    @abstractmethod
    def position_array(self) -> PositionArray:
        """Return all positions, `[T]`, strictly increasing."""

    def layers(self, start: int = 0) -> LayerViews:
        """Return views of the keys and values `[1, Hkv, T, D]` of every layer, from token `start` of the view on."""
        return self.kv.layers(self.start + start, self.stop)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedView(KVView):
    """A view with its positions, `[T]`."""

    positions: PositionArray

    def position_array(self) -> PositionArray:
        """Return all positions."""
        return self.positions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TailGroup:
    """Rows with one new token each, whose own KV lies in one slab.

    Attributes:
        start, stop: Their tokens in the pass, one for each row.
        views: Memory of their own KV, the new tokens included, `[R, Hkv, S, D]`. Tails of rows without a token in
            the pass may lie between.
        indices: The tail of each row among the R tails, increasing.
        positions: Positions of the own tokens, `[stop - start, S]`; `UNUSED_POSITION` behind the last one.
    """

    start: int
    stop: int
    views: LayerViews
    indices: tuple[int, ...]
    positions: PositionArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowChunk:
    """Several new tokens `[start, stop)` of one row, in position order; `older` are its own tokens before them."""

    start: int
    stop: int
    older: KVView | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PassTokens:
    """The tokens of one pass, with all KV that they attend to. They are in the order of groups, then of chunks.

    Attributes:
        segments: The stored KV of all rows.
        users: Bool `[number of segments, T]`, whether the row of a token uses a segment.
        positions: `[T]`.
        groups, chunks: Together they hold each token once.
        kept: What backends prepared for the segments of earlier passes of the same rows, by what attends to them.
    """

    segments: tuple[KVView, ...]
    users: npt.NDArray[np.bool_]
    positions: PositionArray
    groups: tuple[TailGroup, ...]
    chunks: tuple[RowChunk, ...]
    device: torch.device
    kept: dict[bytes, Any] = field(default_factory=dict)

    def attending(self) -> npt.NDArray[np.bool_]:
        """Return bool `[number of segments, T]`, whether a token attends to a segment, if there is no window."""
        last = np.array([segment.last for segment in self.segments], dtype=np.int64)
        return self.users & (last[:, None] < self.positions)

    def seen(self, window: int | None) -> Iterator[tuple[KVView, npt.NDArray[np.intp], int, bool]]:
        """Yield the segments that tokens attend to, and the older own tokens of chunks.

        Each comes with the indices of the tokens, which are above all of its positions, the first key that one of them
        attends to, and whether the window of one of them may end inside.

        Args:
            window: A token attends to keys less than this many positions before it; None means all.
        """
        users = [*zip(self.segments, map(np.flatnonzero, self.attending()), strict=True)]
        users += [(each.older, np.arange(each.start, each.stop)) for each in self.chunks if each.older is not None]
        for view, tokens in users:
            start, is_cut = 0, False
            if window is not None:
                tokens = tokens[self.positions[tokens] - view.last < window]
                is_cut = bool(len(tokens)) and bool(self.positions[tokens].max() - view.first >= window)
                if is_cut:
                    lowest = self.positions[tokens].min() - window
                    start = int(np.searchsorted(view.position_array(), lowest, side="right"))
            if len(tokens):
                yield view, tokens, start, is_cut

    def tail_mask(self, group: TailGroup, window: int | None) -> torch.Tensor | None:
        """Return the mask of tails, bool `[R, 1, 1, S]` on the host; None if each row attends to its whole tail."""
        queries = self.positions[group.start : group.stop, None]
        seen = group.positions <= queries
        if window is not None:
            seen &= queries - group.positions < window
        num_tails = len(group.views[0][0])
        if num_tails == len(group.indices) and seen.all():
            return None
        mask = np.zeros((num_tails, 1, 1, seen.shape[1]), dtype=np.bool_)
        mask[list(group.indices), 0, 0] = seen
        return torch.from_numpy(mask)

    def chunk_mask(self, chunk: RowChunk, window: int | None) -> torch.Tensor | None:
        """Return the mask among the n tokens of a chunk, bool `[n, n]` on the host; None means causal by index."""
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
