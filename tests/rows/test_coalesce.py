"""Coalescing: small segments copied into one buffer have the same tokens in the same order."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from promptcache.kv import KV, KVMemory
from promptcache.layout import Encoding
from promptcache.rows import coalesce
from promptcache.rows.coalesce import Copies
from promptcache.rows.segments import Segment
from promptcache.testing.tiny_model import tiny_model
from tests.kv.stored import recipe

MODEL = tiny_model()
SHAPE = MODEL.shape


def segment(start: int, size: int, token_id: int = 0) -> Segment:
    """Return a segment in its own memory, at positions from `start` on; its KV encodes its place."""
    kv = KV.empty(SHAPE, size)
    places = tuple(range(start, start + size))
    for tensor in (kv.keys, kv.values):
        tensor.copy_(torch.tensor(places, dtype=torch.float32)[:, None].expand_as(tensor))
    source = Encoding(token_ids=(token_id,) * size, position_ids=places)
    return Segment(kv=kv, start=0, stop=size, parts=(source.whole,))


def segments(sizes: list[int], token_id: int = 0) -> list[Segment]:
    starts = accumulate((size + 1 for size in sizes), initial=0)
    return [segment(start, size, token_id) for start, size in zip(starts, sizes, strict=False)]


def contents(found: tuple[Segment, ...]) -> list[int]:
    return [int(each) for one in found for each in one.layers()[1][0][0, 0, :, 0]]


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    small=st.integers(0, 10),
    room=st.integers(0, 60),
    data=st.data(),
)
def test_segments_hold_the_same_tokens(sizes: list[int], small: int, room: int, data: st.DataObject) -> None:
    """Every token is kept once, in order, whatever room there is; at the first use, large segments stay views."""
    given_segments = segments(sizes)
    gaps = [before.last + 1 for before in given_segments[:-1]]
    new_starts = sorted(data.draw(st.sets(st.sampled_from(gaps))) if gaps else [])
    memory = KVMemory(SHAPE, budget_bytes=room * SHAPE.token_bytes)
    copies = Copies(MODEL, memory, small_tokens=small)

    for number in range(3):
        found, num_copied = used(copies, given_segments, new_starts)
        if not number:
            copied = [one for one in found if all(one is not each for each in given_segments)]
            assert num_copied == sum(one.num_tokens for one in copied)
            assert {id(one) for one in given_segments if one.num_tokens >= small} <= {id(one) for one in found}
            for one, after in pairwise(found):
                parted = any(one.last < new < after.first for new in new_starts)
                assert parted or max(one.num_tokens, after.num_tokens) >= small
        positions = [int(each) for one in found for each in one.position_array()]
        assert positions == contents(found) == [int(each) for one in given_segments for each in one.position_array()]
        assert not any(one.first < new < one.last for one in found for new in new_starts)
        assert memory.nbytes() <= memory.budget_bytes
    if room >= sum(sizes):
        assert len(found) == 1 + len(new_starts)


def used(
    copies: Copies, given_segments: Sequence[Segment], new_starts: Sequence[int]
) -> tuple[tuple[Segment, ...], int]:
    copies.count_use(given_segments, new_starts)
    return copies.coalesce(given_segments, new_starts)


def place(one: Segment) -> tuple[KV, int, int]:
    return one.kv, one.start, one.stop


@pytest.mark.parametrize(("budget_bytes", "copied_later"), [(None, 0), (0, 7)], ids=["room", "no room"])
def test_what_was_coalesced_before_is_not_copied_again(budget_bytes: int | None, copied_later: int) -> None:
    """The same selection gets the same copy while a request holds it, and after if there is room."""
    copies, parts = Copies(MODEL, KVMemory(SHAPE, budget_bytes=budget_bytes)), segments([3, 4])
    (first,), copied = copies.coalesce(parts, [])

    (second,), copied_again = copies.coalesce(parts, [])
    assert (copied, copied_again) == (7, 0)
    assert place(second) == place(first)

    del first, second
    assert copies.coalesce(parts, [])[1] == copied_later


def test_a_copy_in_use_is_never_written() -> None:
    copies = Copies(MODEL, KVMemory(SHAPE, budget_bytes=11 * SHAPE.token_bytes))
    first, _ = copies.coalesce(segments([3, 4]), [])

    second, _ = copies.coalesce(segments([5, 6]), [])

    assert contents(first) == [0, 1, 2, 4, 5, 6, 7]
    assert contents(second) == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]


def test_all_neighbours_are_joined_at_the_second_use() -> None:
    """A combination is one copy then, cut at new tokens. Another combination of the same modules is not joined."""
    parts = segments([2, 3, 9, 8])  # at 0, 3, 7 and 17
    copies = Copies(MODEL, KVMemory(SHAPE), small_tokens=5)

    sizes = [
        ([each.num_tokens for each in found], copied) for found, copied in (used(copies, parts, []) for _ in "123")
    ]
    assert sizes == [([5, 9, 8], 5), ([22], 22), ([22], 0)]

    others = [used(copies, each, [])[1] for each in (parts[1:], parts[2:])]
    assert others == [0, 0]
    cut = [[each.num_tokens for each in used(copies, parts, [16])[0]] for _ in "12"]
    assert cut == [[5, 9, 8], [14, 8]]


def test_uses_of_a_combination_are_counted_by_request() -> None:
    """A service joins the same rows again when others come and go: that is no use."""
    parts, copies = segments([9, 8]), Copies(MODEL, KVMemory(SHAPE), small_tokens=5)
    copies.count_use(parts, [])

    assert [copies.coalesce(parts, [])[1] for _ in "123"] == [0, 0, 0]


def test_the_last_used_combinations_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalesce, "MAX_COMBINATIONS", 2)
    copies = Copies(MODEL, KVMemory(SHAPE), small_tokens=5)

    copied = [used(copies, segments([9, 8], token_id), [])[1] for token_id in (0, 1, 0, 2, 1)]

    assert copied == [0, 0, 17, 0, 0]


def test_a_copy_takes_no_room_of_encodings() -> None:
    """Without room, neighbours stay views, and shifted or small ones are copied for the requests of one time."""
    memory = KVMemory(SHAPE, budget_bytes=20 * SHAPE.token_bytes)
    made_of = recipe("encoding", 10)
    keys = torch.zeros(SHAPE.num_layers, SHAPE.num_kv_heads, 10, SHAPE.head_dim, dtype=SHAPE.dtype)
    memory.offer(made_of, keys, keys, 10.0)
    copies, parts = Copies(MODEL, memory, small_tokens=5), segments([9, 8])

    assert [used(copies, parts, [])[1] for _ in "123"] == [0, 0, 0]
    assert memory.recipes() == (made_of,)


def test_pools_of_two_engines_share_no_copies() -> None:
    """Their models may differ: the digest of an encoding does not cover the model."""
    memory, parts = KVMemory(SHAPE), segments([3, 4])

    assert [Copies(MODEL, memory).coalesce(parts, [])[1] for _ in "12"] == [7, 7]
