"""Who sees whom, from positions alone."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from promptcache.kv.types import KVShape, RunKV, Slab
from promptcache.layout import Encoding
from promptcache.runtime.segments import Part, Segment, Timeline

SHAPE = KVShape(num_layers=1, num_kv_heads=1, head_dim=2, dtype=torch.float32, device=torch.device("cpu"))


def segment(positions: list[int]) -> Segment:
    """A segment whose tokens stand at `positions`."""
    run = RunKV(slab=Slab.empty(SHAPE, len(positions)), start=0, stop=len(positions))
    places = tuple(positions)
    source = Encoding(index=0, run=0, scaffolds=(), token_ids=places, position_ids=places, context=())
    return Segment(runs=(run,), start=0, stop=len(places), parts=(Part(source, 0, len(places)),))


@st.composite
def timelines(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Positions of segments and of own tokens: disjoint, and no own token inside a segment."""
    gaps = draw(st.lists(st.integers(1, 9), min_size=2, max_size=24))
    positions = [sum(gaps[: index + 1]) for index in range(len(gaps))]
    owners = draw(st.lists(st.integers(0, 2), min_size=len(gaps), max_size=len(gaps)))
    owners[-1] = 0  # the last token is the request's own
    segments: list[list[int]] = []
    for index, owner in enumerate(owners):
        if owner and index and owners[index - 1] == owner:
            segments[-1].append(positions[index])
        elif owner:
            segments.append([positions[index]])
    return segments, [position for position, owner in zip(positions, owners, strict=True) if not owner]


@given(timeline=timelines(), window=st.none() | st.integers(1, 40), chunk=st.integers(1, 6), more=st.integers(0, 3))
def test_sights_are_the_definition(
    timeline: tuple[list[list[int]], list[int]], window: int | None, chunk: int, more: int
) -> None:
    """A query sees exactly the keys at lower positions within its window, and itself, in whatever chunks it is fed."""
    stored, own = timeline
    line = Timeline([segment(positions) for positions in stored], own, torch.device("cpu"))
    own = [*own, *range(own[-1] + 1, own[-1] + 1 + more)]

    for start in range(0, len(own), chunk):
        queries = own[start : start + chunk]
        sights = line.sights(start + len(queries), len(queries), window)
        for index, positions in enumerate(stored):
            assert seen_of_segment(sights.seen[index], len(queries), len(positions)) == [
                [key < query and (window is None or query - key < window) for key in positions] for query in queries
            ]
        keys = own[: start + len(queries)]
        assert seen_of_tail(sights.tail_mask, len(queries), len(keys)) == [
            [key <= query and (window is None or query - key < window) for key in keys] for query in queries
        ]


@given(lengths=st.lists(st.integers(1, 3), min_size=1, max_size=9), absent=st.lists(st.integers(0, 3), min_size=9))
def test_looks_hold_every_token_once_in_few_pieces(lengths: list[int], absent: list[int]) -> None:
    """Whatever lies where: all keys of all segments, none twice, and of stretches of one length at most half as many."""
    slab = Slab(keys=torch.arange(99.0).view(1, 1, 99, 1), values=torch.arange(99.0).view(1, 1, 99, 1))
    segments, start = [], 0
    for length, gap in zip(lengths, absent, strict=False):
        start += gap
        segments.append(stretch(slab, start, start + length))
        start += length

    looks = Timeline(segments, [100], torch.device("cpu")).sights(1, 1, None).looks

    found = [views.by_layer[0][0].flatten().tolist() for views, _ in looks]
    expected = [float(token) for each in segments for token in range(each.start, each.stop)]
    assert sorted(token for tokens in found for token in tokens) == expected
    assert len(looks) <= sum((lengths.count(length) + 1) // 2 for length in set(lengths))


def test_chunks_at_equal_distances_are_one_look() -> None:
    """Eight chunks of a document, every second one present: one call of a kernel in each layer."""
    slab = Slab.empty(SHAPE, 64)
    segments = [stretch(slab, start, start + 4) for start in range(0, 64, 8)]

    looks = Timeline(segments, [100], torch.device("cpu")).sights(1, 1, None).looks

    assert [views.by_layer[0][0].shape for views, _ in looks] == [(8, 1, 4, 2)]


def stretch(slab: Slab, start: int, stop: int) -> Segment:
    """Tokens of a slab, each at the position that is its place."""
    places = tuple(range(start, stop))
    source = Encoding(index=0, run=0, scaffolds=(), token_ids=places, position_ids=places, context=())
    run = RunKV(slab=slab, start=start, stop=stop)
    return Segment(runs=(run,), start=start, stop=stop, parts=(Part(source, 0, len(places)),))


def seen_of_segment(sight: object, rows: int, width: int) -> list[list[bool]]:
    """Write a sight out as a matrix."""
    seen = torch.zeros((rows, width), dtype=torch.bool)
    if sight is not None:
        seen[sight.first_row :, sight.start : sight.stop] = True if sight.mask is None else sight.mask  # type: ignore[attr-defined]
    return seen.tolist()


def seen_of_tail(mask: torch.Tensor | None, rows: int, width: int) -> list[list[bool]]:
    """Write a tail mask out as a matrix: None is plain causality by index."""
    return (torch.ones((rows, width)).tril(width - rows).bool() if mask is None else mask).tolist()
