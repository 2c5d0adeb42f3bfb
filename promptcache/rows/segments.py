"""Segments: views of stored KV in a request's cache, with the KV parts that they hold.

For requests that are computed together, segments are cut so that KV that several rows reuse is attended to once per
layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from promptcache.attention import KVView, PositionArray
from promptcache.kv import KV
from promptcache.layout import Encoding, KVPart, RequestTokens
from promptcache.rows.history import Recalled


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

    def position_array(self) -> PositionArray:
        """Return all positions, `[T]`."""
        return np.concatenate([np.asarray(part.position_ids, dtype=np.int64) for part in self.parts])


SharedSegment: TypeAlias = tuple[Segment, tuple[int, ...]]
"""A segment with the batch rows that attend to it."""


def linked_segments(
    tokens: RequestTokens, kv_of: Mapping[Encoding, KV], recalled: Recalled | None
) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """Return a segment for each part, in position order: those that may be coalesced, and those that grow.

    The last stretch grows from request to request, for example in a conversation. A copy of it would serve one request.
    Its parts that requests of every salt use do not grow with it.
    """
    stored: Sequence[KVPart] = tokens.parts
    growing: Sequence[KVPart] = ()
    if recalled is not None:
        *others, last = recalled.stretches
        growing = last.parts[last.num_shared_parts :]
        if kept := [part for each in others for part in each.parts] + [*last.parts[: last.num_shared_parts]]:
            stored = sorted((*stored, *kept), key=lambda part: part.first)
        kv_of = {**kv_of, **recalled.kv_of}
    segments, grown = (
        tuple(
            Segment(
                kv=kv_of[part.encoding], start=part.start, stop=part.stop, parts=(part,), is_shifted=part.shift != 0
            )
            for part in parts
        )
        for parts in (stored, growing)
    )
    return segments, grown


def shared_segments(rows: Sequence[Sequence[Segment]]) -> Iterator[SharedSegment]:
    """Cut the rows' segments where the set of rows that use them changes, and yield each piece with its rows.

    Rows that use the same KV at different positions do not share it.

    Every token of every row is in exactly one piece. A piece is a view of adjacent tokens of one KV.

    Args:
        rows: Segments of one part each. Those of a row do not overlap.
    """
    alike: dict[tuple[KV, int], list[tuple[int, Segment]]] = {}
    for row, segments in enumerate(rows):
        for segment in segments:
            alike.setdefault((segment.kv, segment.parts[0].shift), []).append((row, segment))
    for views in alike.values():
        beginning: dict[int, list[tuple[int, Segment]]] = {}
        for row, segment in views:
            beginning.setdefault(segment.start, []).append((row, segment))
        seen: dict[int, Segment] = {}
        for start, stop in pairwise(sorted({*beginning, *(segment.stop for _, segment in views)})):
            seen = {row: segment for row, segment in seen.items() if segment.stop > start}
            seen.update(beginning.get(start, ()))
            if seen:
                users = tuple(sorted(seen))
                segment = seen[users[0]]
                if (start, stop) != (segment.start, segment.stop):
                    part = replace(segment.parts[0], start=start, stop=stop)
                    segment = replace(segment, start=start, stop=stop, parts=(part,))
                yield segment, users
