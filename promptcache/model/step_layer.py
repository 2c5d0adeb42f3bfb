"""The cache layers of forward passes over rows. They hold no KV themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from transformers.cache_utils import Cache

from promptcache.attention import AttentionCall, PreparedAttention
from promptcache.model.hook import AttendingLayer


class Step(Protocol):
    """The KV that the tokens of one forward pass write and attend to."""

    @property
    def attention(self) -> PreparedAttention:
        """Attention over the KV of all their rows."""

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write keys and values `[1, Hkv, T, D]` of the pass's tokens in one layer."""


class StepLayer(AttendingLayer):
    """The cache of one layer during one forward pass."""

    def __init__(self, step: Step, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # not annotated
        self._step = step
        self._index = index
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: the memory belongs to the rows."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the KV of the pass's tokens, and return it, tagged with this layer for attention."""
        self._step.write(self._index, key_states, value_states)
        return self.tagged(key_states), value_states

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Return the attention of the pass's tokens, `[1, T, Hq, D]`."""
        return self._step.attention.run(self._index, call)

    def get_seq_length(self) -> int:
        """Return 0: rows differ in length. All positions are explicit."""
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return a length for which transformers builds no mask."""
        return self.unmasked(query_length), 0


def step_cache(step: Step, num_layers: int) -> Cache:
    """Return a transformers cache for one forward pass."""
    return Cache(layers=[StepLayer(step, index) for index in range(num_layers)])


class LinkedRows(Step, Protocol):
    """Rows over the same stored KV, as the rows of a transformers cache. They grow with each forward pass."""

    def open(self, num_rows: int, num_tokens: int) -> None:
        """Begin a pass over the next T tokens of B rows, which `write` gets row by row: `[1, Hkv, B * T, D]`."""

    @property
    def num_held(self) -> int:
        """The number of tokens of a row, stored ones and those of complete passes."""

    def keep(self, num_tokens: int) -> None:
        """Drop the tokens of each row behind the first ones, as far as they are not stored KV."""

    def select(self, indices: Sequence[int]) -> None:
        """Replace the rows by some of them."""

    @property
    def num_rows(self) -> int:
        """The number of rows."""


class LinkedLayer(StepLayer):  # type: ignore[no-untyped-call] # the base class is not annotated
    """One layer of a cache that is handed out. Its rows serve all layers, so the first layer changes them."""

    _step: LinkedRows

    is_croppable = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append own tokens, and return their keys and values, tagged with this layer for attention."""
        if self._index == 0:
            self._step.open(key_states.shape[0], key_states.shape[2])
        self._step.write(self._index, _side_by_side(key_states), _side_by_side(value_states))
        return self.tagged(key_states), value_states

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Return the attention of the newest tokens, `[B, T, Hq, D]`."""
        num_rows, _, num_tokens, _ = call.query.shape
        query, keys, values = map(_side_by_side, call[:3])
        found = super().attend(call._replace(query=query, keys=keys, values=values))
        return found.view(num_rows, num_tokens, *found.shape[2:])

    def get_seq_length(self) -> int:
        """Return the number of stored and own tokens so far."""
        return self._step.num_held

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the length that the next forward pass attends to; transformers builds no mask for it."""
        return self.unmasked(self.get_seq_length() + query_length), 0

    def crop(self, tokens: int) -> None:
        """Drop the last `-tokens` own tokens if negative; if positive, keep the first `tokens` of all tokens.

        Assisted decoding removes rejected candidates: with a negative number (transformers 5.23), or with the length
        of its IDs less one (5.4).
        """
        if self._index == 0:
            self._step.keep(self.get_seq_length() + tokens if tokens <= 0 else tokens)

    def reset(self) -> None:
        """Drop the own tokens; stored KV is not changed."""
        if self._index == 0:
            self._step.keep(0)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row; stored KV serves any number of rows."""
        if self._index == 0:
            self._step.select([row for row in range(self._step.num_rows) for _ in range(repeats)])

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some rows."""
        self.reorder_cache(indices)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Reorder the rows for beam search."""
        if self._index == 0:
            self._step.select(torch.arange(self._step.num_rows)[beam_idx.cpu()].tolist())


def _side_by_side(states: torch.Tensor) -> torch.Tensor:
    """Return states `[B, H, T, D]` as `[1, H, B * T, D]`, row by row."""
    return states if len(states) == 1 else states.transpose(0, 1).flatten(1, 2)[None]


def linked_cache(rows: LinkedRows, num_layers: int) -> Cache:
    """Return a transformers cache that hands rows out."""
    return Cache(layers=[LinkedLayer(rows, index) for index in range(num_layers)])
