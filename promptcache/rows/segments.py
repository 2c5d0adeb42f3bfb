"""Segments: views of stored KV in a request's cache, with the KV parts that they hold."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from promptcache.attention import KVView, PositionArray
from promptcache.kv import KV
from promptcache.layout import Encoding, KVPart


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment(KVView):
    """A view of stored KV: tokens `[start, stop)` of `kv`.

    Attributes:
        parts: The KV parts in view, in position order.
        is_shifted: Whether the keys in memory are those of the positions at which the parts were encoded, and not of
            those at which they stand. `Copies` moves such keys before they are attended to.
    """

    parts: tuple[KVPart, ...]
    is_shifted: bool = False

    @property
    def first(self) -> int:
        """The lowest position."""
        return self.parts[0].first

    @property
    def last(self) -> int:
        """The highest position."""
        return self.parts[-1].last

    def encoded_array(self) -> PositionArray:
        """Return the positions at which the tokens were encoded, `[T]`."""
        own = [part.encoding.position_ids[part.start : part.stop] for part in self.parts]
        return np.concatenate([np.asarray(each, dtype=np.int64) for each in own])

    def position_array(self) -> PositionArray:
        """Return all positions, `[T]`."""
        return np.concatenate([np.asarray(part.position_ids, dtype=np.int64) for part in self.parts])


def is_parted(last: int, first: int, new_positions: Sequence[int]) -> bool:
    """Whether a new token lies between position `last` of one view and position `first` of the next."""
    return bisect_right(new_positions, last) != bisect_left(new_positions, first)


def segments_of(parts: Iterable[KVPart], kv_of: Mapping[Encoding, KV]) -> tuple[Segment, ...]:
    """Return a segment over each part.

    Args:
        kv_of: KV of their encodings.
    """
    return tuple(
        Segment(kv=kv_of[part.encoding], start=part.start, stop=part.stop, parts=(part,), is_shifted=part.shift != 0)
        for part in parts
    )
