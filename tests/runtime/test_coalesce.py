"""Coalescing: small segments copied into one buffer have the same tokens in the same order."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from promptcache.kv import KVHandle, MemoryStore, Slab, size_class
from promptcache.layout import Encoding
from promptcache.runtime import coalesce
from promptcache.runtime.coalesce import Pool, open_pool
from promptcache.runtime.segments import Segment
from promptcache.testing.tiny_model import tiny_model
from tests.kv.stored import recipe

MODEL = tiny_model()
SHAPE = MODEL.shape


def segment(start: int, size: int, token_id: int = 0) -> Segment:
    """Return a segment in its own memory, at positions from `start` on; its KV encodes its place."""
    slab = Slab.empty(SHAPE, size)
    places = tuple(range(start, start + size))
    for tensor in (slab.keys, slab.values):
        tensor.copy_(torch.tensor(places, dtype=torch.float32)[:, None].expand_as(tensor))
    source = Encoding(token_ids=(token_id,) * size, position_ids=places)
    return Segment(handles=(KVHandle(slab=slab, start=0, stop=size),), start=0, stop=size, parts=(source.whole,))


def segments(sizes: list[int], token_id: int = 0) -> list[Segment]:
    """Return segments of these sizes, with a free position between any two."""
    starts = accumulate((size + 1 for size in sizes), initial=0)
    return [segment(start, size, token_id) for start, size in zip(starts, sizes, strict=False)]


def contents(found: tuple[Segment, ...]) -> list[int]:
    """Return the KV of segments, token by token."""
    return [int(each) for one in found for each in one.layers().by_layer[1][0][0, 0, :, 0]]


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8), small=st.integers(0, 10), data=st.data())
def test_coalesced_segments_hold_the_same_tokens(sizes: list[int], small: int, data: st.DataObject) -> None:
    """Every token is kept once, in order; large segments stay views, and none extends across a new token."""
    given_segments = segments(sizes)
    gaps = [before.last + 1 for before in given_segments[:-1]]
    new_starts = sorted(data.draw(st.sets(st.sampled_from(gaps))) if gaps else [])

    found, num_copied = Pool(MODEL, small_tokens=small).coalesce(given_segments, new_starts)

    positions = [int(each) for one in found for each in one.position_array()]
    assert positions == contents(found) == [int(each) for one in given_segments for each in one.position_array()]
    assert {id(one) for one in given_segments if one.num_tokens >= small} <= {id(one) for one in found}
    assert not any(one.first < new < one.last for one in found for new in new_starts)
    for one, after in pairwise(found):
        parted = any(one.last < new < after.first for new in new_starts)
        assert parted or max(one.num_tokens, after.num_tokens) >= small
    assert num_copied == sum(one.num_tokens for one in found if all(one is not each for each in given_segments))


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    small=st.integers(0, 10),
    room=st.integers(0, 60),
    data=st.data(),
)
def test_joined_segments_hold_the_same_tokens(sizes: list[int], small: int, room: int, data: st.DataObject) -> None:
    """So they do where large segments are joined, whatever room there is. Copies of large ones take no other room."""
    given_segments = segments(sizes)
    gaps = [before.last + 1 for before in given_segments[:-1]]
    new_starts = sorted(data.draw(st.sets(st.sampled_from(gaps))) if gaps else [])
    buffers = MemoryStore(SHAPE).buffers(room * SHAPE.token_bytes)

    found, _ = Pool(MODEL, buffers, small_tokens=small, joins_large=True).coalesce(given_segments, new_starts)

    positions = [int(each) for one in found for each in one.position_array()]
    assert positions == contents(found) == [int(each) for one in given_segments for each in one.position_array()]
    assert not any(one.first < new < one.last for one in found for new in new_starts)
    views = {id(one) for one in given_segments}
    joined = [one for one in found if id(one) not in views and any(part.num_tokens >= small for part in one.parts)]
    assert sum(one.num_tokens for one in joined) <= room


def pool_in(memory: MemoryStore, limit_bytes: int = 2**20) -> Pool:
    """Return a pool that keeps its copies in a store."""
    return Pool(MODEL, memory.buffers(limit_bytes))


def place(one: Segment) -> tuple[Slab, int, int]:
    """Return where the KV of a segment is."""
    return one.slab, one.start, one.stop


def test_what_was_coalesced_before_is_not_copied_again() -> None:
    """The same selection gets the same copy, while a request holds it and after."""
    pool, parts = pool_in(MemoryStore(SHAPE)), segments([3, 4])
    (first,), copied = pool.coalesce(parts, [])

    (second,), copied_again = pool.coalesce(parts, [])
    assert (copied, copied_again) == (7, 0)
    assert place(second) == place(first)

    where = place(first)
    del first, second
    (third,), copied_later = pool.coalesce(parts, [])
    assert copied_later == 0
    assert place(third) == where


def test_a_copy_in_use_is_never_written() -> None:
    """Another selection gets another copy while a request holds the first one. After it, the memory is used again."""
    one, other = segments([3, 4]), segments([5, 6])
    pool = pool_in(MemoryStore(SHAPE, budget_bytes=13 * SHAPE.token_bytes), 13 * SHAPE.token_bytes)
    first, _ = pool.coalesce(one, [])

    second, _ = pool.coalesce(other, [])
    assert contents(first) == [0, 1, 2, 4, 5, 6, 7]
    assert second[0].slab is not first[0].slab

    slab = first[0].slab
    del first
    third, _ = pool.coalesce(segments([5, 6], token_id=1), [])
    assert third[0].slab is slab
    assert contents(third) == contents(second) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]


def test_large_segments_are_joined_where_copies_have_room() -> None:
    """On a GPU all neighbours are one copy, cut at new tokens. Without room, large segments stay views."""
    parts = segments([2, 3, 9, 8])  # at 0, 3, 7 and 17
    memory = MemoryStore(SHAPE)
    pool = Pool(MODEL, memory.buffers(23 * SHAPE.token_bytes), small_tokens=5, joins_large=True)

    whole, copied = pool.coalesce(parts, [])
    assert ([each.num_tokens for each in whole], copied) == ([22], 22)
    assert contents(whole) == [int(each) for part in parts for each in part.position_array()]
    assert pool.coalesce(parts, [])[1] == 0

    del whole
    cut, copied = pool.coalesce(parts, [16])
    assert ([each.num_tokens for each in cut], copied) == ([14, 8], 14)
    assert cut[1] is parts[3]

    rest, copied = pool.coalesce(segments([2, 3, 9, 8], token_id=1), [])  # `cut` holds 14 of 23 tokens
    assert ([each.num_tokens for each in rest], copied) == ([5, 9, 8], 5)


def test_pools_of_gpus_join_large_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a segment costs launches: not on a CPU, and not with kernels that read lists of segments."""
    monkeypatch.setattr(coalesce, "has_kernels", lambda *_: has_kernels)
    found = {}
    for device in ("cpu", "meta"):
        for has_kernels in (False, True):
            shape = replace(SHAPE, device=torch.device(device))
            found[device, has_kernels] = open_pool(Mock(shape=shape), MemoryStore(shape))._joins_large

    assert [case for case, joins in found.items() if joins] == [("meta", False)]


def test_copies_are_kept_while_there_is_room() -> None:
    """Selections that take turns are copied once each."""
    pool = pool_in(MemoryStore(SHAPE))

    copied = [pool.coalesce(segments([2, 3], token_id), [])[1] for token_id in (0, 1, 0, 1, 0)]

    assert copied == [5, 5, 0, 0, 0]


def test_the_same_places_of_other_encodings_are_copied_again() -> None:
    """A copy is found by the digests of encodings, not by positions or objects."""
    pool = pool_in(MemoryStore(SHAPE))
    first, _ = pool.coalesce(segments([3, 4]), [])
    del first

    _, copied_again = pool.coalesce(segments([3, 4]), [])
    second, copied = pool.coalesce(segments([3, 4], token_id=1), [])
    assert (copied_again, copied) == (0, 7)
    assert contents(second) == [0, 1, 2, 4, 5, 6, 7]


@pytest.mark.parametrize("budget_tokens", [None, 10])
def test_copies_stay_within_the_limit_and_the_budget(budget_tokens: int | None) -> None:
    """The least recently used copies make room for others."""
    budget = None if budget_tokens is None else budget_tokens * SHAPE.token_bytes
    memory = MemoryStore(SHAPE, budget_bytes=budget)
    pool = pool_in(memory, 10 * SHAPE.token_bytes)
    held = [pool.coalesce(segments([2, 3], token_id), []) for token_id in range(4)]
    del held

    for token_id, expected in ((1, 0), (4, 5), (1, 0), (0, 5)):
        assert pool.coalesce(segments([2, 3], token_id), [])[1] == expected
        assert memory.allocated_bytes <= 10 * SHAPE.token_bytes


def test_an_encoding_takes_the_room_of_copies() -> None:
    """The store evicts copies before encodings, and no copy evicts an encoding."""
    memory = MemoryStore(SHAPE, budget_bytes=10 * SHAPE.token_bytes)
    pool, parts = pool_in(memory, 10 * SHAPE.token_bytes), segments([2, 3])
    pool.coalesce(parts, [])
    made_of = recipe("encoding", 10)
    keys = torch.zeros(SHAPE.num_layers, SHAPE.num_kv_heads, 10, SHAPE.head_dim, dtype=SHAPE.dtype)

    memory.put(made_of, keys, keys)

    assert pool.coalesce(parts, [])[1] == 5
    assert made_of.key in memory


def test_requests_of_one_time_share_a_copy_without_room() -> None:
    """Without room, a copy lives as long as the requests that use it."""
    pool, parts = pool_in(MemoryStore(SHAPE, budget_bytes=0)), segments([3, 4])
    (first,), copied = pool.coalesce(parts, [])
    (second,), copied_again = pool.coalesce(parts, [])
    assert (copied, copied_again) == (7, 0)
    assert place(second) == place(first)

    del first, second
    assert pool.coalesce(parts, [])[1] == 7


def test_copies_without_room_have_few_sizes_on_a_gpu() -> None:
    """There, memory of sizes that repeat is used again."""
    on_gpu = replace(SHAPE, device=torch.device("meta"))
    parts = segments([30, 40])
    for shape, expected in ((SHAPE, 70), (on_gpu, size_class(70))):
        (found,), copied = Pool(Mock(shape=shape)).coalesce(parts, [])
        assert (found.num_tokens, copied, found.slab.capacity) == (70, 70, expected)
    assert expected > 70


class Failing:
    """A function that finds memory at its second call."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self) -> int:
        """Return the number of calls."""
        self.num_calls += 1
        if self.num_calls == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return self.num_calls


@pytest.mark.parametrize("in_use", [False, True])
def test_idle_copies_make_room_on_the_device(in_use: bool) -> None:
    """What ran out of memory runs again once copies that no request uses are freed; those in use stay."""
    pool, parts = pool_in(MemoryStore(SHAPE)), segments([3, 4])
    held = pool.coalesce(parts, [])[0] if in_use else None
    pool.coalesce(segments([5, 6]), [])

    assert pool.with_room(Failing()) == 2
    assert pool.coalesce(segments([5, 6]), [])[1] == 11
    assert pool.coalesce(parts, [])[1] == (0 if held else 7)


@pytest.mark.parametrize("budget", [2**20, None])
def test_without_idle_copies_the_error_stays(budget: int | None) -> None:
    """A budget is allocated for good, so its copies stay; without copies, nothing can be freed."""
    pool, parts = pool_in(MemoryStore(SHAPE, budget_bytes=budget)), segments([3, 4])
    if budget is not None:
        pool.coalesce(parts, [])

    with pytest.raises(torch.OutOfMemoryError):
        pool.with_room(Failing())
    assert pool.coalesce(parts, [])[1] == (7 if budget is None else 0)
