"""The cache layers of forward passes over rows. They hold no KV themselves."""

from __future__ import annotations

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
