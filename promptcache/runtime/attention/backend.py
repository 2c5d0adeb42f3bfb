"""The interface of attention backends.

A backend plans once for each forward pass and runs once for each layer. It is given masks, never positions or models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from promptcache.runtime.attention.grouped_queries import GroupedQueries
from promptcache.runtime.attention.masks import ForwardMask


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """What is the same in all layers of one forward pass.

    Attributes:
        queries: Rows, tokens and heads.
        dtype: Of queries, keys and values.
        device: Of all tensors.
        softcap: Scaled scores s are capped to `softcap * tanh(s / softcap)` (Gemma 2); None leaves them.
    """

    queries: GroupedQueries
    dtype: torch.dtype
    device: torch.device
    softcap: float | None


class AttentionPlan(Protocol):
    """The attention of one forward pass, ready to run in any of its layers."""

    def run(
        self,
        layer: int,
        query: torch.Tensor,
        own_keys: torch.Tensor,
        own_values: torch.Tensor,
        *,
        scale: float,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the attention of one layer over segments and own tokens.

        Args:
            layer: Index of the layer whose stored KV is attended to.
            query: `[B, Hq, T, D]`, the queries of the last T own tokens.
            own_keys: `[B, Hkv, n, D]`, of all own tokens up to and with the last query.
            own_values: As `own_keys`.
            scale: Factor on the dot products.
            sinks: `[Hq]` scores that take part in the softmax and have no value (gpt-oss).

        Returns:
            `[B, T, Hq, D]` in the dtype of `query`.
        """


class AttentionBackend(Protocol):
    """A way to compute attention. It keeps no state between plans; any thread may call it."""

    @property
    def name(self) -> str:
        """Unique among the registered backends."""

    def supports(self, spec: AttentionSpec) -> bool:
        """Return whether this backend can compute such attention."""

    def plan(self, mask: ForwardMask, spec: AttentionSpec) -> AttentionPlan:
        """Return the plan of one forward pass; called once for all layers that have the same window."""
