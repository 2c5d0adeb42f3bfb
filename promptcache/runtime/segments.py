"""Segments: views of stored KV, with what they are parts of.

A segment is what `runtime/attention` attends to (its `KVView`); the parts say which encodings its tokens belong to.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from promptcache.kv import KVHandle, LayerViews, Slab
from promptcache.layout import KVPart
from promptcache.runtime.attention import PositionArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """A view of stored KV: tokens `[start, stop)` of the slab that `runs` rest in.

    `parts` say what they are, in the order of their positions; `runs` are held so that their memory stays while the
    segment is used.
    """

    runs: tuple[KVHandle, ...]
    start: int
    stop: int
    parts: tuple[KVPart, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens in view."""
        return self.stop - self.start

    @property
    def first(self) -> int:
        """The lowest position."""
        return self.parts[0].first

    @property
    def last(self) -> int:
        """The highest position."""
        return self.parts[-1].last

    @property
    def slab(self) -> Slab:
        """The memory it is a view of."""
        return self.runs[0].slab

    def layers(self, start: int = 0, stop: int | None = None) -> LayerViews:
        """Return keys and values `[1, Hkv, T, D]` of every layer, as views; of tokens `[start, stop)` if given."""
        return self.slab.layers(self.start + start, self.stop if stop is None else self.start + stop)

    def position_array(self) -> PositionArray:
        """Return all positions, `[T]`."""
        return np.concatenate([np.asarray(part.position_ids, dtype=np.int64) for part in self.parts])


def is_parted(last: int, first: int, new_positions: Sequence[int]) -> bool:
    """Return whether a new token lies between position `last` of one view and position `first` of the next."""
    return bisect_right(new_positions, last) != bisect_left(new_positions, first)
