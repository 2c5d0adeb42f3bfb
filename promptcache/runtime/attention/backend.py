"""The interface of attention backends.

A backend prepares the attention of a forward pass, which then runs once in each layer. It receives masks, never
positions or models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from promptcache.runtime.attention.grouped_queries import GroupedQueries
from promptcache.runtime.attention.masks import ForwardMask
from promptcache.runtime.attention.step_tokens import StepTokens


class AttentionCall(NamedTuple):
    """Arguments of the attention function of a layer.

    Attributes:
        query: `[B, Hq, T, D]`, the queries of the last T own tokens.
        keys: `[B, Hkv, n, D]`, the keys of all own tokens up to the last query. In a step, those of its T tokens.
        values: As `keys`.
        scale: Factor on the dot products.
        window: A query attends to keys less than this many positions before it; None means all keys.
        softcap: Scaled scores s are capped to `softcap * tanh(s / softcap)` (Gemma 2); None means no cap.
        sinks: `[Hq]` scores that take part in the softmax and have no value (gpt-oss).
    """

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Properties that all layers of one forward pass share.

    Attributes:
        queries: Number of rows, tokens and heads.
        head_dim: D, the size of the query or key of one head.
        dtype: The dtype of queries, keys and values.
        device: The device of all tensors.
        softcap: As in `AttentionCall`.
    """

    queries: GroupedQueries
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    softcap: float | None

    @staticmethod
    def of(query: torch.Tensor, num_kv_heads: int, softcap: float | None) -> AttentionSpec:
        """Return the properties of a forward pass with `query [B, Hq, T, D]`."""
        return AttentionSpec(
            queries=GroupedQueries.of(query, num_kv_heads),
            head_dim=query.shape[-1],
            dtype=query.dtype,
            device=query.device,
            softcap=softcap,
        )


class PreparedAttention(Protocol):
    """The attention of a forward pass, ready to run in each of its layers.

    If the forward pass has one token and `mask.is_whole`, it also serves the single tokens after it, which have more
    own keys.
    """

    def run(self, layer: int, call: AttentionCall) -> torch.Tensor:
        """Return the attention of one layer over segments and own tokens, `[B, T, Hq, D]` in the dtype of the query.

        Args:
            layer: Index of the layer whose stored KV is used.
            call: Has the window and the soft cap that the attention was prepared for.
        """


class AttentionBackend(Protocol):
    """An implementation of attention. It keeps no state between forward passes and is thread-safe."""

    @property
    def name(self) -> str:
        """The name, unique among the registered backends."""

    def supports(self, spec: AttentionSpec) -> bool:
        """Whether this backend can compute attention of this kind."""

    def prepare(self, mask: ForwardMask, spec: AttentionSpec) -> PreparedAttention:
        """Prepare the attention of a forward pass. Called once for all layers with the same window."""


@runtime_checkable
class StepBackend(AttentionBackend, Protocol):
    """A backend that computes steps by its own means. Those of a `KernelBackend` are calls of its kernel."""

    def prepare_step(self, tokens: StepTokens, window: int | None, spec: AttentionSpec) -> PreparedAttention:
        """Prepare the attention of a step for layers with this window; `spec` has a row for each token.

        Tails hold the keys and values of the step's tokens before the attention of a layer runs.
        """
