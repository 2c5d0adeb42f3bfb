"""One forward pass `[1, T]` over tokens of rows, side by side and without padding.

Encoding, steps of a batch, scoring and `PrefixCache` all compute with it. Each token attends to the stored KV of its
row and to the row's own tokens up to itself. Stored KV that several rows use is attended to once for all of them. New
KV is written to the tails of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
    has_kernels,
    padded_positions,
    to_device,
)
from promptcache.diagnostics import InvalidValue
from promptcache.kv import KV
from promptcache.layout import RequestTokens
from promptcache.model import Model, token_tensor
from promptcache.rows.segments import Segment, SharedSegment
from promptcache.rows.tails import Tail, Tails, TailSlab

StopCheck: TypeAlias = Callable[[], None]
"""Raises an error to end a forward pass early."""


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """One request in forward passes: its stored KV, and the memory of its own.

    Attributes:
        tokens: The request as it joined, without own tokens of history.
        planned: The positions of its own tokens, as an array for many passes.
        stored, growing: Its stored KV: segments that may be coalesced, and those of its last stretch in history.
        tail: Memory of its own KV.
        num_own: The number of own tokens that were computed.
        num_copied: The number of tokens of segments that were copied. Copies for several rows count for the first of
            them.
    """

    tokens: RequestTokens
    planned: PositionArray
    stored: tuple[Segment, ...]
    growing: tuple[Segment, ...]
    tail: Tail
    num_own: int = 0
    num_copied: int = 0

    def positions(self, start: int, stop: int) -> PositionArray:
        """Return the positions of own tokens. Each token behind those of the request follows the one before it."""
        planned = self.planned
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
        self.segments = tuple(segment for segment, _ in shared)
        self.views = tuple(segment.layers() for segment in self.segments)
        self.index_of = {row: index for index, row in enumerate(rows)}
        self.users = np.zeros((len(shared), len(rows)), dtype=np.bool_)
        for index, (_, users) in enumerate(shared):
            self.users[index, list(users)] = True
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
        self._in_order = [row for row, _ in work]
        self._placed: list[tuple[Row, int, int]] = []  # rows with their tokens `[start, stop)` of the pass
        self.token_list: list[int] = []
        for row, token_ids in sorted(work, key=lambda each: (len(each[1]) > 1, each[0].tail)):
            start = len(self.token_list)
            self.token_list += token_ids
            self._placed.append((row, start, len(self.token_list)))
        self._shared, self._tails, self._model, self._check = shared, tails, model, check
        self._num_layers = 0  # that are written
        self.positions = np.concatenate(
            [row.positions(row.num_own, row.num_own + stop - start) for row, start, stop in self._placed]
        )

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
        users = self._shared.users[:, [self._shared.index_of[row] for row, _, _ in self._placed]]
        singles = [(row, start) for row, start, stop in self._placed if stop - start == 1]
        groups: list[TailGroup] = []
        for size, group in groupby(singles, key=lambda each: each[0].tail.size):
            rows, starts = zip(*group, strict=True)
            first, last = rows[0].tail.slot, rows[-1].tail.slot
            positions = padded_positions([row.positions(0, row.num_own + 1) for row in rows])
            groups.append(
                TailGroup(
                    start=starts[0],
                    stop=starts[-1] + 1,
                    views=self._tails.views(size, first, last, positions.shape[1]),
                    indices=tuple(row.tail.slot - first for row in rows),
                    positions=positions,
                )
            )
        return PassTokens(
            segments=self._shared.segments,
            users=np.repeat(users, [stop - start for _, start, stop in self._placed], axis=1),
            positions=self.positions,
            groups=tuple(groups),
            chunks=tuple(
                RowChunk(start=start, stop=stop, older=self._older(row) if row.num_own else None)
                for row, start, stop in self._placed
                if stop - start > 1
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
        for row, start, stop in self._placed:
            memory = self._tails.memory(row.tail)
            yield from ((memory, row.num_own + index) for index in range(stop - start))

    def last(self, num_last: int | None = 1) -> list[int]:
        """Return the indices of the last `num_last` tokens of each row, in the order of the work; None means all."""
        tokens_of = {row: range(start, stop) for row, start, stop in self._placed}
        some = slice(None if num_last is None else -num_last, None)
        return [index for row in self._in_order for index in tokens_of[row][some]]

    @property
    def is_computed(self) -> bool:
        """Whether the forward pass is complete."""
        return self._num_layers == self._model.shape.num_layers

    def finish(self) -> None:
        """Count the tokens as computed."""
        for row, start, stop in self._placed:
            row.num_own += stop - start

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write keys and values `[1, Hkv, T, D]` of one layer into the tails."""
        if layer != self._num_layers:
            raise InvalidValue("these inputs were used: they serve one forward pass of the engine's model")
        if self._check is not None:
            self._check()
        self._num_layers += 1
        if self._store is not None:
            self._store.write(layer, keys[0].transpose(0, 1), values[0].transpose(0, 1))
            return
        for slab, slot, place, tokens in self._writes:
            for memory, states in ((slab.keys, keys), (slab.values, values)):
                new = states[0, :, tokens].detach()
                if isinstance(slot, int):
                    memory[layer, slot, :, place] = new
                else:
                    memory[layer][slot, :, place] = new.transpose(0, 1)

    @cached_property
    def _store(self) -> TokenStore | None:
        model = self._model
        return TokenStore(self.places, model.shape.device) if has_kernels(model.shape, model.kernels) else None

    @cached_property
    def _writes(self) -> list[tuple[TailSlab, int | torch.Tensor, slice | torch.Tensor, slice]]:
        """Slabs with the slot and the places in it that tokens of the pass go to.

        Single tokens of several rows, which are side by side in the pass, have tensors of slots and of places.
        """
        writes: list[tuple[TailSlab, int | torch.Tensor, slice | torch.Tensor, slice]] = []
        by_slab = groupby(self._placed, key=lambda each: (each[2] - each[1] == 1, each[0].tail.size))
        for (is_single, size), some in by_slab:
            chosen, slab = [*some], self._tails.slabs[size]
            if is_single and len(chosen) > 1:
                slots, places = (
                    to_device(torch.tensor(each), self._model.device)
                    for each in zip(*((row.tail.slot, row.num_own) for row, _, _ in chosen), strict=True)
                )
                writes.append((slab, slots, places, slice(chosen[0][1], chosen[-1][2])))
            else:
                writes += [
                    (slab, row.tail.slot, slice(row.num_own, row.num_own + stop - start), slice(start, stop))
                    for row, start, stop in chosen
                ]
        return writes

    def _older(self, row: Row) -> PlacedView:
        """Return the own tokens of a row that were computed before."""
        own = row.num_own
        return PlacedView(kv=self._tails.memory(row.tail), start=0, stop=own, positions=row.positions(0, own))
