"""Linking: put stored KV and new tokens into a cache for a forward pass.

The segments of a cache are views of stored KV. Two kinds are copied: segments that move to other positions,
and small segments, which `Copies` coalesces. For requests that are computed together, segments are cut so that KV that
several rows reuse is attended to once per layer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import NamedTuple

from promptcache.kv import KV
from promptcache.layout import Encoding, RequestTokens
from promptcache.rows.coalesce import Copies
from promptcache.rows.history import Recalled
from promptcache.rows.segments import Segment, segments_of


def linked_segments(
    tokens: RequestTokens,
    kv_of: Mapping[Encoding, KV],
    recalled: Recalled | None = None,
) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """Return the segments of a request, in position order: those that may be coalesced, and those of its last stretch.

    The last stretch grows from request to request, for example in a conversation. A copy of it would serve one request.
    Its parts that requests of every salt use do not grow with it.
    """
    if recalled is None:
        return segments_of(tokens.parts, kv_of), ()
    *others, last = recalled.stretches
    kept = [part for each in others for part in each.parts] + [*last.parts[: last.num_shared_parts]]
    parts = sorted((*tokens.parts, *kept), key=lambda part: part.first) if kept else tokens.parts
    stored = segments_of(parts, {**kv_of, **recalled.kv_of})
    return stored, segments_of(last.parts[last.num_shared_parts :], last.kv_of)


class SharedSegment(NamedTuple):
    """A segment with the batch rows that attend to it."""

    segment: Segment
    rows: tuple[int, ...]


def shared_segments(rows: Sequence[Sequence[Segment]]) -> Iterator[SharedSegment]:
    """Cut the rows' segments where the set of rows that use them changes, and yield each piece with its rows.

    Rows that use the same KV at different positions do not share it.

    Every token of every row is in exactly one piece. A piece is a view of adjacent tokens of one KV.
    """
    alike: dict[tuple[KV, int], list[tuple[int, Segment]]] = {}
    for row, segments in enumerate(rows):
        for segment in segments:
            shift = segment.parts[0].shift if segment.is_shifted else 0
            alike.setdefault((segment.kv, shift), []).append((row, segment))
    for views in alike.values():
        yield from _cut_apart(views)


def coalesced_segments(
    shared: Sequence[SharedSegment], new_positions: Sequence[Sequence[int]], copies: Copies
) -> tuple[tuple[SharedSegment, ...], list[int]]:
    """Coalesce small segments that the same rows use.

    Args:
        new_positions: For each row the positions of its new tokens, in order. Segments on both sides of a new
            token are not joined.

    Returns:
        The segments, and for each row the number of tokens copied for it.
    """
    alike: dict[tuple[int, ...], list[Segment]] = {}
    for segment, rows in shared:
        alike.setdefault(rows, []).append(segment)
    found: list[SharedSegment] = []
    copied = [0] * len(new_positions)
    for rows, segments in alike.items():
        between = sorted({position for row in rows for position in new_positions[row]})
        fewer, num_copied = copies.coalesce(sorted(segments, key=lambda each: each.first), between)
        found.extend(SharedSegment(segment, rows) for segment in fewer)
        copied[rows[0]] += num_copied
    return tuple(found), copied


def _cut_apart(views: Sequence[tuple[int, Segment]]) -> Iterator[SharedSegment]:
    """Yield the shared segments of the same KV. Those of one row do not overlap."""
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
            yield SharedSegment(_cut(segment, start, stop, places[segment]), rows)


def _cut(segment: Segment, start: int, stop: int, places: Sequence[int]) -> Segment:
    """Return the part `[start, stop)` of a segment, in tokens of its KV. Its parts begin at `places`."""
    parts = []
    for index in range(bisect_right(places, start) - 1, bisect_left(places, stop)):
        part = segment.parts[index]
        offset = part.start - places[index]
        parts.append(
            replace(part, start=max(start, places[index]) + offset, stop=min(stop, places[index + 1]) + offset)
        )
    return replace(segment, start=start, stop=stop, parts=tuple(parts))
