"""One forward pass `[1, T]` over tokens of rows, side by side and without padding.

Encoding, steps of a batch, scoring and `PrefixCache` all compute with it. Each token attends to the stored KV of its
row and to the row's own tokens up to itself. Stored KV that several rows use is attended to once for all of them. New
KV is written to the tails of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import torch

from promptcache.attention import (
    PassAttention,
    PassTokens,
    PlacedView,
    PositionArray,
    RowChunk,
    TailGroup,
    TokenStore,
    padded_positions,
    to_device,
    token_store,
)
from promptcache.diagnostics import InvalidValue
from promptcache.kv import KV
from promptcache.layout import RequestTokens
from promptcache.model import Model, token_tensor
from promptcache.rows.link import SharedSegment
from promptcache.rows.segments import Segment
from promptcache.rows.tails import Tail, Tails

StopCheck: TypeAlias = Callable[[], None]
"""Raises an error to end a forward pass early."""


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """One request in forward passes: its stored KV, and the memory of its own.

    Attributes:
        tokens: The request as it joined, without own tokens of history.
        stored, growing: Its stored KV: segments that may be coalesced, and those of its last stretch in history.
        tail: Memory of its own KV.
        num_own: The number of own tokens that were computed.
        num_copied: The number of tokens of segments that were copied. Copies for several rows count for the first of
            them.
    """

    tokens: RequestTokens
    stored: tuple[Segment, ...]
    growing: tuple[Segment, ...]
    tail: Tail
    num_own: int = 0
    num_copied: int = 0
    _planned: PositionArray = field(init=False)

    def __post_init__(self) -> None:
        """Convert the positions of the request, once for many passes."""
        self._planned = np.array(self.tokens.position_ids, dtype=np.int64)

    def positions(self, start: int, stop: int) -> PositionArray:
        """Return the positions of own tokens. Each token behind those of the request follows the one before it."""
        planned = self._planned
        behind = np.arange(max(start, len(planned)), max(stop, len(planned)), dtype=np.int64) - len(planned)
        return np.concatenate([planned[start:stop], planned[-1] + 1 + behind])


class SharedKV:
    """The stored KV of rows.

    Attributes:
        segments: Each is used by a fixed set of rows.
        users: Bool `[number of segments, R]`, whether a row uses a segment.
        views: Views of each segment in all layers. While they are held, passes share them (`KV.layers`).
        index_of: Index of each row.
        kept: What attention prepared for the segments.
    """

    def __init__(self, rows: Sequence[Row], shared: Sequence[SharedSegment]) -> None:
        self.segments = tuple(each.segment for each in shared)
        self.views = tuple(segment.layers() for segment in self.segments)
        self.index_of = {row: index for index, row in enumerate(rows)}
        self.users = np.zeros((len(shared), len(rows)), dtype=np.bool_)
        for index, each in enumerate(shared):
            self.users[index, list(each.rows)] = True
        self.kept: dict[bytes, Any] = {}


class Pass:
    """The next tokens of some rows in one forward pass.

    Attributes:
        token_list: The T token IDs.
        positions: Their positions, `[T]`.
    """

    def __init__(
        self,
        work: Sequence[tuple[Row, Sequence[int]]],
        shared: SharedKV,
        tails: Tails,
        model: Model,
        check: StopCheck | None = None,
    ) -> None:
        """Prepare a pass. Single tokens come first, those of one slab of tails side by side.

        Args:
            work: Rows with their next token IDs. The tails have room for them.
            check: Called in each layer, before its KV is written.
        """
        order = sorted(range(len(work)), key=lambda index: _sort_key(*work[index]))
        places: dict[int, _RowTokens] = {}
        start = 0
        for index in order:
            row, token_ids = work[index]
            places[index] = _RowTokens(row, token_ids, start)
            start = places[index].stop
        self._placed = tuple(places.values())
        self._of_work = tuple(places[index] for index in range(len(work)))
        self._shared, self._tails, self._model, self._check = shared, tails, model, check
        self._num_layers = 0  # that are written
        self.token_list = [token_id for each in self._placed for token_id in each.token_ids]
        self.positions = np.concatenate([each.positions for each in self._placed])

    @cached_property
    def token_ids(self) -> torch.Tensor:
        """The token IDs on the device, `[1, T]`."""
        return token_tensor(self.token_list, self._model.device)

    @cached_property
    def position_ids(self) -> torch.Tensor:
        """The positions on the device, `[1, T]`."""
        return to_device(torch.from_numpy(self.positions)[None], self._model.device)

    @cached_property
    def tokens(self) -> PassTokens:
        """The tokens with all KV that they attend to."""
        users = self._shared.users[:, [self._shared.index_of[each.row] for each in self._placed]]
        return PassTokens(
            segments=self._shared.segments,
            users=np.repeat(users, [each.num_tokens for each in self._placed], axis=1),
            positions=self.positions,
            groups=tuple(self._groups()),
            chunks=tuple(
                RowChunk(start=each.start, stop=each.stop, older=self._older(each.row))
                for each in self._placed
                if each.num_tokens > 1
            ),
            device=self._model.device,
            kept=self._shared.kept,
        )

    @cached_property
    def attention(self) -> PassAttention:
        """Attention of all tokens to the KV of their rows."""
        return PassAttention(self.tokens, self._model.kernels)

    @property
    def places(self) -> Iterator[tuple[KV, int]]:
        """For each token the memory of its row, and its index there."""
        for each in self._placed:
            memory = self._tails.memory(each.row.tail)
            yield from ((memory, index) for index in range(*each.own))

    def last(self, num_last: int | None = 1) -> list[int]:
        """Return the indices of the last `num_last` tokens of each row, in the order of the work; None means all."""
        return [
            index
            for each in self._of_work
            for index in range(each.stop - min(num_last or each.num_tokens, each.num_tokens), each.stop)
        ]

    @property
    def is_computed(self) -> bool:
        """Whether the forward pass is complete."""
        return self._num_layers == self._model.shape.num_layers

    def finish(self) -> None:
        """Count the tokens as computed."""
        for each in self._placed:
            each.row.num_own += each.num_tokens

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write keys and values `[1, Hkv, T, D]` of one layer into the tails."""
        if layer != self._num_layers:
            raise InvalidValue("these inputs were used: they serve one forward pass of the engine's model")
        if self._check is not None:
            self._check()
        self._num_layers += 1
        if self._store is not None:
            self._store.write(layer, keys[0].transpose(0, 1), values[0].transpose(0, 1))
        for write in self._writes:
            write(layer, keys[0].detach(), values[0].detach())

    @cached_property
    def _store(self) -> TokenStore | None:
        return token_store(self._model.shape, self.places, self._model.kernels)

    @cached_property
    def _writes(self) -> tuple[_Write | _RowWrite, ...]:
        if self._store is not None:
            return ()
        writes = list[_Write | _RowWrite]()
        for (is_single, _), some in groupby(self._placed, key=lambda each: (each.num_tokens == 1, each.row.tail.size)):
            chosen = tuple(some)
            if is_single and len(chosen) > 1:
                writes.append(_Write(chosen, self._tails, self._model.device))
            else:
                writes += [_RowWrite(each, self._tails.memory(each.row.tail)) for each in chosen]
        return tuple(writes)

    def _older(self, row: Row) -> PlacedView | None:
        """Return the own tokens of a row that were computed before; None if there are none."""
        if not row.num_own:
            return None
        own = row.num_own
        return PlacedView(kv=self._tails.memory(row.tail), start=0, stop=own, positions=row.positions(0, own))

    def _groups(self) -> Iterator[TailGroup]:
        """Yield one group of single tokens for each size of tails."""
        singles = [each for each in self._placed if each.num_tokens == 1]
        for size, group in groupby(singles, key=lambda each: each.row.tail.size):
            chosen = tuple(group)
            first, last = chosen[0].row.tail.slot, chosen[-1].row.tail.slot
            positions = padded_positions([each.row.positions(0, each.own[1]) for each in chosen])
            yield TailGroup(
                start=chosen[0].start,
                stop=chosen[-1].stop,
                views=self._tails.views(size, first, last, positions.shape[1]),
                indices=tuple(each.row.tail.slot - first for each in chosen),
                positions=positions,
            )


def _sort_key(row: Row, token_ids: Sequence[int]) -> tuple[bool, int, int]:
    """Return the key that sorts the rows of a pass."""
    return len(token_ids) > 1, row.tail.size, row.tail.slot


@dataclass(frozen=True, slots=True)
class _RowTokens:
    """The tokens of one row, in a pass from `start` on."""

    row: Row
    token_ids: Sequence[int]
    start: int

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def stop(self) -> int:
        return self.start + self.num_tokens

    @property
    def own(self) -> tuple[int, int]:
        """The range of these tokens among the own tokens of the row."""
        return self.row.num_own, self.row.num_own + self.num_tokens

    @property
    def positions(self) -> PositionArray:
        return self.row.positions(*self.own)


class _RowWrite:
    """Writes the tokens of one row to the next places of its tail."""

    def __init__(self, tokens: _RowTokens, memory: KV) -> None:
        self._from, self._to = slice(tokens.start, tokens.stop), slice(*tokens.own)
        self._memory = memory

    def __call__(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write from keys and values `[Hkv, T, D]` of one layer."""
        self._memory.keys[layer, :, self._to] = keys[:, self._from]
        self._memory.values[layer, :, self._to] = values[:, self._from]


class _Write:
    """Writes single tokens of several rows to tails of one size."""

    def __init__(self, chosen: Sequence[_RowTokens], tails: Tails, device: torch.device) -> None:
        self._tokens = slice(chosen[0].start, chosen[-1].stop)  # they are side by side in the pass
        self._memory = tails.slabs[chosen[0].row.tail.size]
        self._slots = to_device(torch.tensor([each.row.tail.slot for each in chosen]), device)
        self._places = to_device(torch.tensor([each.row.num_own for each in chosen]), device)

    def __call__(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write from keys and values `[Hkv, T, D]` of one layer."""
        self._memory.keys[layer][self._slots, :, self._places] = keys[:, self._tokens].transpose(0, 1)
        self._memory.values[layer][self._slots, :, self._places] = values[:, self._tokens].transpose(0, 1)
