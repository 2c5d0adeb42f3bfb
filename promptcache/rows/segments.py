"""Segments: views of stored KV in a request's cache, with the KV parts that they hold.

A segment is a `KVView` of `attention`. Parts that are neighbours in memory are one segment, whichever schema
or request they come from.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from promptcache.attention import PositionArray
from promptcache.kv import KVHandle, LayerViews, Slab
from promptcache.layout import Encoding, KVPart


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """A view of stored KV: tokens `[start, stop)` of the slab of its `handles`.

    Attributes:
        handles: Handles that keep the memory allocated while the segment is used.
        start, stop: Tokens, counted from the start of the slab.
        parts: The KV parts in view, in position order.
        is_shifted: Whether the keys in memory are those of the positions at which the parts were encoded, and not of
            those at which they stand. A pool moves such keys before they are attended to.
    """

    handles: tuple[KVHandle, ...]
    start: int
    stop: int
    parts: tuple[KVPart, ...]
    is_shifted: bool = False

    @property
    def num_tokens(self) -> int:
        """The number of tokens in view."""
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
        """The slab that this is a view of."""
        return self.handles[0].slab

    def layers(self, start: int = 0, stop: int | None = None) -> LayerViews:
        """Return views of the keys and values `[1, Hkv, T, D]` of every layer, of tokens `[start, stop)` if given."""
        return self.slab.layers(self.start + start, self.stop if stop is None else self.start + stop)

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


def segments_of(
    parts: Iterable[KVPart], handles: Mapping[Encoding, KVHandle], new_positions: Sequence[int] = ()
) -> tuple[Segment, ...]:
    """Return segments over parts. Neighbours in memory are one segment, unless a new token lies between them.

    Parts in one segment have one shift.

    Args:
        parts: In position order.
        handles: KV of their encodings.
        new_positions: Positions of the new tokens, in order.
    """
    return tuple(_joined(((handles[part.encoding], part) for part in parts), new_positions))


def _joined(views: Iterable[tuple[KVHandle, KVPart]], new_positions: Sequence[int]) -> Iterator[Segment]:
    held: list[tuple[KVHandle, KVPart]] = []
    for handle, part in views:
        if held:
            before, last = held[-1]
            touching = before.slab is handle.slab and before.start + last.stop == handle.start + part.start
            if not touching or last.shift != part.shift or is_parted(last.last, part.first, new_positions):
                yield _segment(held)
                held = []
        held.append((handle, part))
    if held:
        yield _segment(held)


def _segment(views: Sequence[tuple[KVHandle, KVPart]]) -> Segment:
    handles, parts = zip(*views, strict=True)
    return Segment(
        handles=handles,
        start=handles[0].start + parts[0].start,
        stop=handles[-1].start + parts[-1].stop,
        parts=parts,
        is_shifted=parts[0].shift != 0,
    )
