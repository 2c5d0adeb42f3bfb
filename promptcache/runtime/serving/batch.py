"""A batch of requests that join, compute tokens together, and leave, in any order.

Each step is one forward pass `[1, T]` whose T tokens belong to any rows: parts of prompts and single decoded tokens.
Stored KV that several rows use is attended to once for all their tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, groupby

import torch

from promptcache.kv import KVHandle, LayerViews, Slab
from promptcache.layout import Encoding, RequestTokens
from promptcache.runtime.attention import (
    PositionArray,
    RequestPositions,
    SegmentedAttention,
    TailGroup,
    TokenStore,
    append_function,
    padded_positions,
    to_device,
    token_store,
)
from promptcache.runtime.coalesce import Pool, views_only
from promptcache.runtime.hf.model import Model, token_tensor
from promptcache.runtime.hf.step_layer import step_cache
from promptcache.runtime.history import Recalled
from promptcache.runtime.link import SharedSegment, coalesced_segments, linked_segments, segment_users, shared_segments
from promptcache.runtime.packed_rows import PackedTokens
from promptcache.runtime.segments import Segment
from promptcache.runtime.serving.tails import Tail, Tails
from promptcache.runtime.step_graphs import StepGraphs


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """One request in a batch. `Batch` changes it.

    Attributes:
        tokens: The request as it joined, without own tokens of history.
        stored, growing: Its stored KV: segments that may be coalesced, and those of its last stretch in history.
        positions: The positions of its own tokens.
        tail: Memory of its own KV.
        num_own: The number of own tokens that were computed.
        num_copied: The number of tokens of segments that were copied. Copies for several rows count for the first of
            them.
    """

    tokens: RequestTokens
    stored: tuple[Segment, ...]
    growing: tuple[Segment, ...]
    positions: RequestPositions
    tail: Tail
    num_own: int = 0
    num_copied: int = 0


class Batch:
    """Requests that share forward passes. Not thread-safe.

    Attributes:
        tails: Memory of the KV of the rows' own tokens.
    """

    def __init__(self, model: Model, pool: Pool | None = None, graphs: StepGraphs | None = None) -> None:
        """Create an empty batch.

        Args:
            pool: Copies of moved and of joined segments; None keeps none.
            graphs: Recorded steps of the model; None starts all kernels of a step one by one.
        """
        self._model = model
        self._pool = views_only(model) if pool is None else pool
        self._graphs = graphs
        self._rows: list[Row] = []
        self._shared: _Shared | None = None  # None after the set of rows changed
        self.tails = Tails(model.shape)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows, in the order in which they joined."""
        return tuple(self._rows)

    def join(
        self,
        tokens: RequestTokens,
        handles: Mapping[Encoding, KVHandle],
        recalled: Recalled | None = None,
    ) -> Row:
        """Add a request. Nothing is computed.

        Args:
            tokens: Its new tokens are not computed before they are passed to `step`.
            handles: KV of at least every encoding that the request has parts of. The row holds it until it leaves.
            recalled: The own tokens with the KV that history has of them. The others are the request's new tokens.
        """
        self._model.check_vocabulary(tokens.token_ids)
        if recalled is not None:
            tokens = recalled.new_tokens
        stored, growing = linked_segments(tokens, handles, tokens.position_ids, recalled)
        self._pool.count_use(stored, tokens.position_ids)
        row = Row(
            tokens=tokens,
            stored=stored,
            growing=growing,
            positions=RequestPositions((*stored, *growing), tokens.position_ids),
            tail=self._pool.with_room(partial(self.tails.take, len(tokens.token_ids))),
        )
        self._rows.append(row)
        self._shared = None
        return row

    def leave(self, row: Row) -> None:
        """Remove a row and free its memory."""
        self._rows.remove(row)
        self._shared = None
        self.tails.give_back(row.tail)

    def own_kv(self, row: Row) -> Slab:
        """Return the KV of own tokens, views `[L, Hkv, n, D]`, valid until the row computes more tokens or leaves."""
        memory = self.tails.memory(row.tail)
        return Slab(keys=memory.keys[:, :, : row.num_own], values=memory.values[:, :, : row.num_own])

    @torch.no_grad()
    def step(self, work: Sequence[tuple[Row, Sequence[int]]], *, all_tokens: bool = False) -> torch.Tensor:
        """Compute tokens of some rows in one forward pass, and return logits.

        The first own tokens of a row have the positions of its request. Each later one follows the one before it. If
        the device has no memory for it, the pool makes room, and it is run again.

        Args:
            work: Rows with their next token IDs. Each row occurs once at most and has at least one token.
            all_tokens: Return the logits of all tokens, not only of the last token of each row.

        Returns:
            `[R, V]`, or `[T, V]` with `all_tokens`, in the order of `work`. If the forward pass raises, the rows are
            as before.
        """
        assert len({row for row, _ in work}) == len(work) > 0, "each row occurs once"
        assert all(token_ids for _, token_ids in work), "each row has tokens"
        logits = self._pool.with_room(partial(self._logits, work, all_tokens))
        for row, token_ids in work:
            row.num_own += len(token_ids)
        return logits

    def _logits(self, work: Sequence[tuple[Row, Sequence[int]]], all_tokens: bool) -> torch.Tensor:
        for row, token_ids in work:
            row.tail = self.tails.grown(row.tail, row.num_own, row.num_own + len(token_ids))
        shared = self._shared_segments()
        order = sorted(range(len(work)), key=lambda index: _sort_key(*work[index]))
        stops = dict(zip(order, accumulate(len(work[index][1]) for index in order), strict=True))
        kept = [
            place
            for index, (_, token_ids) in enumerate(work)
            for place in range(stops[index] - (len(token_ids) if all_tokens else 1), stops[index])
        ]
        return self._compute([work[index] for index in order], shared, kept)

    def _compute(self, work: Sequence[tuple[Row, Sequence[int]]], shared: _Shared, kept: Sequence[int]) -> torch.Tensor:
        """Compute a step over sorted `work`, and return the logits of the `kept` tokens."""
        step: _RowStep | _Step | None = None
        if self._graphs is not None:
            step = _Step(work, shared, self.tails, self._model)
            if (logits := self._graphs.compute(step, step.places, kept)) is not None:
                return logits
        if shared.alone is not None:
            step = _RowStep(*work[0], shared.alone, self.tails, self._model)
        elif step is None:
            step = _Step(work, shared, self.tails, self._model)
        return self._model.forward(
            step.token_ids,
            step.position_ids,
            step_cache(step, self._model.shape.num_layers),
            keep=to_device(torch.tensor(kept), self._model.device),
        )[0]

    def _shared_segments(self) -> _Shared:
        if self._shared is None:
            shared = tuple(shared_segments([row.stored for row in self._rows]))
            positions = [row.tokens.position_ids for row in self._rows]
            shared, copied = coalesced_segments(shared, positions, self._pool)
            for row, num_copied in zip(self._rows, copied, strict=True):
                row.num_copied += num_copied
            if any(row.growing for row in self._rows):
                shared += tuple(shared_segments([row.growing for row in self._rows]))
            self._shared = _Shared(self._rows, shared)
        return self._shared


class _Shared:
    """The stored KV of all rows.

    Attributes:
        segments: Each is used by a fixed set of rows.
        users: Bool `[number of segments, B]`, whether a row uses a segment.
        views: Views of each segment in all layers. While they are held, steps share them (`Slab.layers`).
        index_of: Index of each row.
        alone: Attention of the only row, prepared once for many steps; None if there are several rows.
    """

    def __init__(self, rows: Sequence[Row], shared: Sequence[SharedSegment]) -> None:
        self.segments = tuple(each.segment for each in shared)
        self.views = tuple(segment.layers() for segment in self.segments)
        self.index_of = {row: index for index, row in enumerate(rows)}
        self.users = segment_users(shared, len(rows))
        self.alone: SegmentedAttention | None = None
        if len(rows) == 1:
            segments = sorted(self.segments, key=lambda segment: segment.first)
            self.alone = SegmentedAttention(RequestPositions(segments, rows[0].tokens.position_ids))


def _sort_key(row: Row, token_ids: Sequence[int]) -> tuple[bool, int, int]:
    """Return the key that sorts the rows of a step: single tokens first, those of one slab side by side."""
    return len(token_ids) > 1, row.tail.size, row.tail.slot


class _RowStep:
    """One forward pass over the tokens of the only row. It attends to the beginning of one tail, without masks.

    Attributes:
        token_ids, position_ids: `[1, T]`.
        attention: Attention of the tokens over the KV of the row.
    """

    def __init__(
        self, row: Row, token_ids: Sequence[int], attention: SegmentedAttention, tails: Tails, model: Model
    ) -> None:
        self.attention = attention
        self._start, self._stop = row.num_own, row.num_own + len(token_ids)
        self._tail = tails.memory(row.tail)
        self._append = append_function(model.shape.dtype, model.shape.head_dim, model.shape.device)
        self.token_ids = token_tensor(token_ids, model.device)
        positions = row.positions.of_own_tokens(self._start, self._stop)
        self.position_ids = to_device(torch.from_numpy(positions)[None], model.device)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values `[1, Hkv, T, D]` of one layer into the tail, and return those of all own tokens."""
        own_keys, own_values = (states[layer, :, : self._stop][None] for states in (self._tail.keys, self._tail.values))
        self._append(own_keys[:, :, self._start :], own_values[:, :, self._start :], keys, values)
        return own_keys, own_values


class _Step(PackedTokens):
    """One forward pass over the tokens of several rows, which are written into their tails."""

    def __init__(self, work: Sequence[tuple[Row, Sequence[int]]], shared: _Shared, tails: Tails, model: Model) -> None:
        """Prepare a step over `work`, which is sorted by `_sort_key`."""
        stops = accumulate(len(token_ids) for _, token_ids in work)
        places = [
            _RowTokens(row, stop - len(token_ids), stop) for (row, token_ids), stop in zip(work, stops, strict=True)
        ]
        super().__init__(
            [
                (token_ids, row.positions.of_own_tokens(*each.own))
                for (row, token_ids), each in zip(work, places, strict=True)
            ],
            shared.segments,
            shared.users[:, [shared.index_of[row] for row, _ in work]],
            model.device,
            groups=tuple(_groups([each for each in places if each.num_tokens == 1], tails)),
            older={
                index: _OwnView(tails.memory(row.tail), row.positions.of_own_tokens(0, row.num_own))
                for index, (row, token_ids) in enumerate(work)
                if row.num_own and len(token_ids) > 1
            },
        )
        self._tails, self._model, self._placed = tails, model, places

    @property
    def places(self) -> Iterator[tuple[Slab, int]]:
        """For each token the memory of its row, and its index there."""
        for each in self._placed:
            memory = self._tails.memory(each.row.tail)
            yield from ((memory, index) for index in range(*each.own))

    @cached_property
    def _store(self) -> TokenStore | None:
        return token_store(self._model.shape, self.places)

    @cached_property
    def _writes(self) -> tuple[_Write, ...]:
        return () if self._store is not None else tuple(_writes(self._placed, self._model.device))

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values `[1, Hkv, T, D]` of one layer into the rows' tails, and return them."""
        by_token = keys[0].transpose(0, 1), values[0].transpose(0, 1)  # [T, Hkv, D]
        if self._store is not None:
            self._store.write(layer, *by_token)
        for each in self._writes:
            some = by_token if each.tokens is None else (states.index_select(0, each.tokens) for states in by_token)
            self._tails.write(layer, each.size, each.slots, each.indices, *some)
        return keys, values


@dataclass(frozen=True, slots=True)
class _RowTokens:
    """The tokens `[start, stop)` of a step that belong to one row."""

    row: Row
    start: int
    stop: int

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start

    @property
    def own(self) -> tuple[int, int]:
        """The range of these tokens among the own tokens of the row."""
        return self.row.num_own, self.row.num_own + self.num_tokens


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Write:
    """Places to write the tokens of one step to, for tails of one size; `tokens` None means all tokens."""

    size: int
    tokens: torch.Tensor | None
    slots: torch.Tensor
    indices: torch.Tensor


def _writes(places: Sequence[_RowTokens], device: torch.device) -> Iterator[_Write]:
    num_tokens = places[-1].stop
    for size in sorted({each.row.tail.size for each in places}):
        chosen = [each for each in places if each.row.tail.size == size]
        tokens = [token for each in chosen for token in range(each.start, each.stop)]
        slots = [each.row.tail.slot for each in chosen for _ in range(each.num_tokens)]
        indices = [index for each in chosen for index in range(*each.own)]
        yield _Write(
            size=size,
            tokens=None if len(tokens) == num_tokens else to_device(torch.tensor(tokens), device),
            slots=to_device(torch.tensor(slots), device),
            indices=to_device(torch.tensor(indices), device),
        )


def _groups(singles: Sequence[_RowTokens], tails: Tails) -> Iterator[TailGroup]:
    """Yield one group of single tokens for each size of tails."""
    for size, group in groupby(singles, key=lambda each: each.row.tail.size):
        chosen = tuple(group)
        first, last = chosen[0].row.tail.slot, chosen[-1].row.tail.slot
        positions = padded_positions([each.row.positions.of_own_tokens(0, each.own[1]) for each in chosen])
        yield TailGroup(
            start=chosen[0].start,
            stop=chosen[-1].stop,
            views=tails.views(size, first, last, positions.shape[1]),
            indices=tuple(each.row.tail.slot - first for each in chosen),
            positions=positions,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _OwnView:
    """A `KVView` of the first tokens of a tail."""

    slab: Slab
    positions: PositionArray

    @property
    def start(self) -> int:
        return 0

    @property
    def stop(self) -> int:
        return len(self.positions)

    @property
    def num_tokens(self) -> int:
        return len(self.positions)

    @property
    def first(self) -> int:
        return int(self.positions[0])

    @property
    def last(self) -> int:
        return int(self.positions[-1])

    def position_array(self) -> PositionArray:
        return self.positions

    def layers(self, start: int = 0, stop: int | None = None) -> LayerViews:
        return self.slab.layers(start, len(self.positions) if stop is None else stop)
