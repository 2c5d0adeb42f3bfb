"""The cache layer of linked requests: segments of stored KV, and a tail with the KV of the request's own tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers.cache_utils import Cache

from promptcache.runtime.attention import Append, AttentionCall, Positions, SegmentedAttention, append_function
from promptcache.runtime.hf.hook import AttendingLayer

_FIRST_CAPACITY = 64


class SegmentedLayer(AttendingLayer):
    """The cache of one layer: segments, which are shared and never written, and a private tail."""

    is_croppable = True
    _append: Append  # once there are own tokens

    def __init__(self, attention: SegmentedAttention, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # not annotated
        self.attention = attention
        self.index = index
        self.num_own = 0
        self._tail_keys = self._tail_values = torch.empty(1, 0, 0, 0)  # [B, Hkv, C, D] once there are own tokens

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the tail `[B, Hkv, C, D]`."""
        capacity = max(_FIRST_CAPACITY, key_states.shape[2] + _FIRST_CAPACITY)
        self._tail_keys, self._tail_values = (_resized(states, capacity, 0) for states in (key_states, value_states))
        self.dtype, self.device = key_states.dtype, key_states.device
        self._append = append_function(self.dtype, key_states.shape[3], self.device)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append own tokens and return the tail, tagged with this layer for the attention function."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        stop = self.num_own + key_states.shape[2]
        if stop > self._tail_keys.shape[2]:
            self._change(lambda tail: _resized(tail, 2 * stop, self.num_own))
        start, self.num_own = self.num_own, stop
        to_keys, to_values = (tail[:, :, start:stop] for tail in (self._tail_keys, self._tail_values))
        self._append(to_keys, to_values, key_states, value_states)
        keys, values = self.tail()
        return self.tagged(keys), values

    def attend(self, call: AttentionCall) -> torch.Tensor:
        """Return the attention of the newest tokens over the segments and the tail, `[B, T, Hq, D]`."""
        return self.attention.run(self.index, call)

    def tail(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return views of the own tokens' keys and values, `[B, Hkv, n, D]`."""
        return self._tail_keys[:, :, : self.num_own], self._tail_values[:, :, : self.num_own]

    def get_seq_length(self) -> int:
        """Return the number of stored and own tokens so far."""
        return self.attention.positions.num_cached + self.num_own

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the length that the next forward pass attends to; transformers builds no mask for it."""
        return self.unmasked(self.get_seq_length() + query_length), 0

    def crop(self, tokens: int) -> None:
        """Drop the last `-tokens` own tokens if negative; if positive, keep the first `tokens` of all tokens.

        Assisted decoding removes rejected candidates: with a negative number (transformers 5.23), or with the length
        of its IDs less one (5.4).
        """
        kept = self.num_own + tokens if tokens <= 0 else tokens - self.attention.positions.num_cached
        self.num_own = max(0, min(self.num_own, kept))

    def reset(self) -> None:
        """Drop the own tokens; stored KV is not changed."""
        self.num_own = 0

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row of the tail; segments serve any number of rows."""
        self._change(lambda tail: tail.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some rows of the tail."""
        self._change(lambda tail: tail[indices])

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Reorder the rows of the tail for beam search."""
        self._change(lambda tail: tail.index_select(0, beam_idx.to(tail.device)))

    def _change(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        if self.is_initialized:
            self._tail_keys, self._tail_values = change(self._tail_keys), change(self._tail_values)


def segmented_cache(positions: Positions, num_layers: int) -> Cache:
    """Return a transformers cache over the segments of `positions` with an empty tail."""
    attention = SegmentedAttention(positions)
    return Cache(layers=[SegmentedLayer(attention, index) for index in range(num_layers)])


def _resized(states: torch.Tensor, capacity: int, kept: int) -> torch.Tensor:
    batch, heads, _, width = states.shape
    resized = states.new_empty((batch, heads, capacity, width))
    if kept:
        resized[:, :, :kept] = states[:, :, :kept]
    return resized
