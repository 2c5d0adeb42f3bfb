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
            assert seen_of_segment(sights.segments[index], len(queries), len(positions)) == [
                [key < query and (window is None or query - key < window) for key in positions] for query in queries
            ]
        keys = own[: start + len(queries)]
        assert seen_of_tail(sights.tail_mask, len(queries), len(keys)) == [
            [key <= query and (window is None or query - key < window) for key in keys] for query in queries
        ]


def seen_of_segment(sight: object, rows: int, width: int) -> list[list[bool]]:
    """Write a sight out as a matrix."""
    seen = torch.zeros((rows, width), dtype=torch.bool)
    if sight is not None:
        seen[sight.first_row :, sight.start : sight.stop] = True if sight.mask is None else sight.mask  # type: ignore[attr-defined]
    return seen.tolist()


def seen_of_tail(mask: torch.Tensor | None, rows: int, width: int) -> list[list[bool]]:
    """Write a tail mask out as a matrix: None is plain causality by index."""
    return (torch.ones((rows, width)).tril(width - rows).bool() if mask is None else mask).tolist()
