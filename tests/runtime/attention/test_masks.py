"""Masks computed from positions, and the kernel calls that follow from them."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from promptcache.kv import KVShape, Slab
from promptcache.runtime.attention import RequestPositions, SegmentMask, kernel_calls
from tests.runtime.attention.views import View

SHAPE = KVShape(num_layers=1, num_kv_heads=1, head_dim=2, dtype=torch.float32, device=torch.device("cpu"))


@st.composite
def placed_tokens(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], list[int]]:
    """Draw disjoint positions of segments and own tokens, with no own token inside a segment."""
    gaps = draw(st.lists(st.integers(1, 9), min_size=2, max_size=24))
    positions = [sum(gaps[: index + 1]) for index in range(len(gaps))]
    owners = draw(st.lists(st.integers(0, 2), min_size=len(gaps), max_size=len(gaps)))
    owners[-1] = 0  # the last token is the request's own
    segments: list[tuple[int, ...]] = []
    for index, owner in enumerate(owners):
        if owner and index and owners[index - 1] == owner:
            segments[-1] = (*segments[-1], positions[index])
        elif owner:
            segments.append((positions[index],))
    return segments, [position for position, owner in zip(positions, owners, strict=True) if not owner]


@given(placed=placed_tokens(), window=st.none() | st.integers(1, 40), chunk=st.integers(1, 6), more=st.integers(0, 3))
def test_masks_are_the_definition(
    placed: tuple[list[tuple[int, ...]], list[int]], window: int | None, chunk: int, more: int
) -> None:
    """A query attends to itself and to exactly the keys at lower positions within its window, in any chunks."""
    stored, own = placed
    segments = [View(Slab.empty(SHAPE, len(positions)), 0, positions) for positions in stored]
    request = RequestPositions(segments, own)
    own = [*own, *range(own[-1] + 1, own[-1] + 1 + more)]

    for start in range(0, len(own), chunk):
        queries = own[start : start + chunk]
        mask = request.forward_mask(start + len(queries), len(queries), window)
        for index, positions in enumerate(stored):
            assert attended(mask.masks[index], len(queries), len(positions)) == [
                [key < query and (window is None or query - key < window) for key in positions] for query in queries
            ]
        keys = own[: start + len(queries)]
        assert attended_own(mask.own_mask, len(queries), len(keys)) == [
            [key <= query and (window is None or query - key < window) for key in keys] for query in queries
        ]


@given(lengths=st.lists(st.integers(1, 3), min_size=1, max_size=9), absent=st.lists(st.integers(0, 3), min_size=9))
def test_kernel_calls_have_every_token_once(lengths: list[int], absent: list[int]) -> None:
    """Each key is in exactly one call, and each segment is one call."""
    slab = Slab(keys=torch.arange(99.0).view(1, 1, 99, 1), values=torch.arange(99.0).view(1, 1, 99, 1))
    segments, start = [], 0
    for length, gap in zip(lengths, absent, strict=False):
        start += gap
        segments.append(View(slab, start, tuple(range(start, start + length))))
        start += length

    calls = kernel_calls(RequestPositions(segments, [100]).forward_mask(1, 1, None))

    found = [views.by_layer[0][0].flatten().tolist() for views, _ in calls]
    expected = [float(token) for each in segments for token in range(each.start, each.stop)]
    assert sorted(token for tokens in found for token in tokens) == expected
    assert len(calls) == len(segments)


def attended(mask: SegmentMask | None, num_queries: int, num_keys: int) -> list[list[bool]]:
    """Return the mask of a segment as a matrix."""
    matrix = torch.zeros((num_queries, num_keys), dtype=torch.bool)
    if mask is not None:
        matrix[mask.first_query :, mask.start : mask.stop] = True if mask.mask is None else mask.mask
    return matrix.tolist()


def attended_own(mask: torch.Tensor | None, num_queries: int, num_keys: int) -> list[list[bool]]:
    """Return the mask of own tokens as a matrix; None is causal by index."""
    return (torch.ones((num_queries, num_keys)).tril(num_keys - num_queries).bool() if mask is None else mask).tolist()
