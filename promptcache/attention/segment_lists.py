"""The keys that each query of a forward pass attends to, as lists of numbers for a kernel that follows addresses.

A range of keys is a part of stored KV or of own tokens. Queries that attend to the same ranges share work items: a
program of the kernel reads the keys of its item once for all queries of the item. One tensor holds all lists, so that
one copy takes them to the device. It serves all layers with one window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from promptcache.attention.pass_tokens import PassTokens, PositionArray, TailGroup

SEGMENT_FIELDS = 6
"""Address of the first key and of the first value in layer 0; elements between layers, heads and tokens; where the
positions of the keys begin in the list, or -1 if no query has to compare them.
"""

RANGE_FIELDS = 3
"""Segment, first key and end."""

_OF_CALL = -1
"""The segment of the keys of the layer's call."""

ITEM_FIELDS = 4
"""First range and end, first of the item's tokens, and their number."""

NO_POSITIONS = -1

_MIN_KEYS, _KEYS_STEP = 128, 64  # of one item
_TARGET_PROGRAMS = 1024  # more than enough for the processors of a GPU

_MOST_SEGMENTS = 256  # of stored KV, in a step with fixed places
_MOST_COMPARED = 1 << 14  # positions of keys where windows end, as above
_MORE_ITEMS = 64  # for sets of tokens, as above

_Tokens: TypeAlias = npt.NDArray[np.intp]


class Memory(NamedTuple):
    """Where the kernel finds stored keys and values: addresses in layer 0, and strides in elements.

    Attributes:
        keys, values: Address of the first key, and of the first value.
        layer, head, token: Strides, the same for keys and values.
        positions: Of the keys, if a query has to compare them with its own.
    """

    keys: int
    values: int
    layer: int
    head: int
    token: int
    positions: PositionArray | None = None


class KeyRange(NamedTuple):
    """Keys `[start, stop)` and the queries that attend to them, in rising order.

    Attributes:
        tokens: Indices of the queries.
        memory: None means the keys of the layer's call, causal by index.
    """

    tokens: _Tokens
    start: int
    stop: int
    memory: Memory | None


class ListSizes(NamedTuple):
    """How many numbers each list has, or has room for, in the order in which the lists lie."""

    segments: int
    ranges: int
    items: int
    tokens: int
    starts: int
    entries: int
    positions: int
    own_positions: int
    compared: int

    @staticmethod
    def room(num_tokens: int, num_kv_heads: int, tokens_at_once: int, *, has_window: bool) -> ListSizes:
        """Return room for the lists of usual steps with `num_tokens` tokens. The arguments are as for `make_lists`."""
        shared_items = _TARGET_PROGRAMS // num_kv_heads
        segments, items = num_tokens + _MOST_SEGMENTS, shared_items + num_tokens + _MORE_ITEMS
        entries = shared_items * min(num_tokens, tokens_at_once) + 4 * num_tokens
        return ListSizes(
            segments=segments * SEGMENT_FIELDS,
            ranges=(items + segments + num_tokens) * RANGE_FIELDS,
            items=items * ITEM_FIELDS,
            tokens=entries,
            starts=num_tokens + 1,
            entries=entries,
            positions=num_tokens,
            own_positions=num_tokens if has_window else 0,
            compared=_MOST_COMPARED if has_window else 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentLists:
    """Lists of one forward pass.

    Attributes:
        numbers: All lists, one behind the other, int64.
        sizes: Of each list. `entries` are indices of partial results, `starts` where those of each query begin among
            them.
        holds: Objects whose memory the lists have addresses of.
    """

    numbers: torch.Tensor
    sizes: ListSizes
    holds: tuple[object, ...]

    @property
    def begins(self) -> ListSizes:
        """Where each list begins."""
        return ListSizes(*accumulate(self.sizes[:-1], initial=0))

    @property
    def own_positions(self) -> int:
        """Where the positions of own keys begin, or `NO_POSITIONS` if no query has to compare them."""
        return self.begins.own_positions if self.sizes.own_positions else NO_POSITIONS

    @property
    def num_items(self) -> int:
        """Programs of the kernel for each head."""
        return self.sizes.items // ITEM_FIELDS

    def spread(self, room: SegmentLists) -> torch.Tensor | None:
        """Return the numbers with each list where fixed lists have its place; None if a list is longer.

        Items behind the last one have no queries, so that their programs do nothing. Lists behind the last number
        are left out.
        """
        if any(size > most for size, most in zip(self.sizes, room.sizes, strict=True)):
            return None
        old, new = self.begins, room.begins
        numbers, found = self.numbers.numpy(), np.zeros(new.compared + self.sizes.compared, dtype=np.int64)
        for size, first, place in zip(self.sizes, old, new, strict=True):
            found[place : place + size] = numbers[first : first + size]
        fields = found[: self.sizes.segments].reshape(-1, SEGMENT_FIELDS)  # a view
        fields[fields[:, -1] != NO_POSITIONS, -1] += new.compared - old.compared
        return torch.from_numpy(found)


def key_ranges(pass_tokens: PassTokens, window: int | None) -> Iterator[KeyRange]:
    """Yield the keys of a pass. Own keys of chunks are those of the layer's call."""
    for view, tokens, start, is_cut in pass_tokens.seen(window):
        keys, values = view.kv.keys, view.kv.values
        layer, head, token, _ = keys.stride()
        assert keys.stride() == values.stride(), "one stride serves keys and values"
        offset = view.start * token * keys.element_size()
        compared = view.position_array() if is_cut else None
        memory = Memory(keys.data_ptr() + offset, values.data_ptr() + offset, layer, head, token, compared)
        yield KeyRange(tokens, start, view.num_tokens, memory)
    for group in pass_tokens.groups:
        yield from _tails(group, pass_tokens.positions, window)
    for chunk in pass_tokens.chunks:
        yield KeyRange(np.arange(chunk.start, chunk.stop), chunk.start, chunk.stop, None)


def _tails(group: TailGroup, positions: PositionArray, window: int | None) -> Iterator[KeyRange]:
    """Yield the own keys of requests with one token each. A window is a range of them, so nothing is compared."""
    keys, values = group.views[0]
    layer = (group.views[1][0].data_ptr() - keys.data_ptr()) // keys.element_size() if len(group.views) > 1 else 0
    row, head, token, _ = keys.stride()
    for number, index in enumerate(group.indices):
        place = positions[group.start + number]
        stop = int(np.searchsorted(group.positions[number], place, side="right"))
        start = 0
        if window is not None:
            start = int(np.searchsorted(group.positions[number], place - window, side="right"))
        offset = index * row * keys.element_size()
        memory = Memory(keys.data_ptr() + offset, values.data_ptr() + offset, layer, head, token)
        yield KeyRange(np.array([group.start + number]), start, stop, memory)


def make_lists(
    ranges: Sequence[KeyRange],
    positions: PositionArray,
    *,
    num_kv_heads: int,
    tokens_at_once: int,
    compares_own: bool,
    holds: tuple[object, ...],
) -> SegmentLists:
    """Return the lists of ranges of keys.

    Args:
        positions: Of the tokens, `[T]`. Each attends to something.
        num_kv_heads: Programs of one item.
        tokens_at_once: Largest number of queries of one item.
        compares_own: Whether a window ends among the keys of the layer's call.
        holds: As in `SegmentLists`.
    """
    segments: list[int] = []
    compared: list[PositionArray] = []
    num_compared = 0
    alike: dict[bytes, tuple[_Tokens, list[tuple[int, int, int]]]] = {}
    for each in ranges:
        segment = _OF_CALL
        if each.memory is not None:
            segment = len(segments) // SEGMENT_FIELDS
            *place, known = each.memory
            segments += (*place, NO_POSITIONS if known is None else num_compared)
            if known is not None:
                compared.append(known)
                num_compared += len(known)
        alike.setdefault(each.tokens.tobytes(), (each.tokens, []))[1].append((segment, each.start, each.stop))
    num_read = sum(
        -(-len(users) // tokens_at_once) * sum(stop - start for _, start, stop in wanted)
        for users, wanted in alike.values()
    )
    size = num_read * num_kv_heads // _TARGET_PROGRAMS  # few keys of one item for few queries: all processors have work
    size = max(_MIN_KEYS, -(-size // _KEYS_STEP) * _KEYS_STEP)
    flat_ranges: list[int] = []
    items: list[int] = []
    tokens: list[_Tokens] = []
    num_entries = 0
    for users, wanted in alike.values():
        for piece in _pieces(wanted, size):
            first = len(flat_ranges) // RANGE_FIELDS
            for each_range in piece:
                flat_ranges += each_range
            for begin in range(0, len(users), tokens_at_once):
                some = users[begin : begin + tokens_at_once]
                items += (first, first + len(piece), num_entries, len(some))
                tokens.append(some)
                num_entries += len(some)
    of_entry = np.concatenate(tokens)
    counts = np.bincount(of_entry, minlength=len(positions))
    assert counts.min() > 0, "each query attends to something"
    own = positions if compares_own else np.empty(0, dtype=np.int64)
    parts = [
        np.array(segments, dtype=np.int64),
        np.array(flat_ranges, dtype=np.int64),
        np.array(items, dtype=np.int64),
        of_entry,
        np.concatenate([[0], np.cumsum(counts)]),
        np.argsort(of_entry, kind="stable"),
        positions,
        own,
        *compared,
    ]
    sizes = ListSizes._make([*map(len, parts[:8]), num_compared])
    numbers = np.concatenate(parts).astype(np.int64, copy=False)
    fields = numbers[: len(segments)].reshape(-1, SEGMENT_FIELDS)  # a view
    fields[fields[:, -1] != NO_POSITIONS, -1] += len(numbers) - num_compared
    return SegmentLists(numbers=torch.from_numpy(numbers), sizes=sizes, holds=holds)


def _pieces(ranges: Sequence[tuple[int, int, int]], size: int) -> Iterator[list[tuple[int, int, int]]]:
    """Cut ranges into lists with `size` keys each; the last one may have fewer."""
    piece: list[tuple[int, int, int]] = []
    room = size
    for segment, start, stop in ranges:
        while start < stop:
            end = min(stop, start + room)
            piece.append((segment, start, end))
            room -= end - start
            start = end
            if not room:
                yield piece
                piece, room = [], size
    if piece:
        yield piece
