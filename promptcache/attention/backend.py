"""The interface of attention backends.

A backend prepares the attention of a forward pass, which then runs once in each layer. It knows no models.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import torch

from promptcache.attention.pass_tokens import PassTokens
from promptcache.diagnostics import InvalidValue, one_of

_ASKED = "PROMPTCACHE_ATTENTION"


class Kernels(StrEnum):
    """The kernels that compute attention on a GPU: PyTorch's, or those in Triton without or with CUDA graphs."""

    TORCH = "torch"
    TRITON = "triton"
    GRAPHS = "graphs"


def asked_kernels() -> Kernels | None:
    """Return the kernels that the environment variable `PROMPTCACHE_ATTENTION` names; None if it is not set.

    Raises:
        InvalidValue: It has another value.
    """
    asked = os.environ.get(_ASKED)
    if not asked:
        return None
    one_of(Kernels).check(_ASKED, asked, InvalidValue)
    return Kernels(asked)


class AttentionCall(NamedTuple):
    """Arguments of the attention function of a layer.

    Attributes:
        query: `[1, Hq, T, D]`, the queries of the tokens of a pass.
        keys: `[1, Hkv, T, D]`, their keys.
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
        num_tokens: T.
        num_kv_heads: Hkv.
        num_groups: G, the number of query heads for each key head.
        head_dim: D, the size of the query or key of one head.
        dtype: The dtype of queries, keys and values.
        device: The device of all tensors.
        softcap: As in `AttentionCall`.
    """

    num_tokens: int
    num_kv_heads: int
    num_groups: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    softcap: float | None

    @staticmethod
    def of(call: AttentionCall) -> AttentionSpec:
        """Return the properties of the forward pass of a call."""
        _, heads, num_tokens, width = call.query.shape
        num_kv_heads = call.keys.shape[1]
        return AttentionSpec(
            num_tokens=num_tokens,
            num_kv_heads=num_kv_heads,
            num_groups=heads // num_kv_heads,
            head_dim=width,
            dtype=call.query.dtype,
            device=call.query.device,
            softcap=call.softcap,
        )


class PreparedAttention(Protocol):
    """The attention of a forward pass, ready to run in each of its layers."""

    def run(self, layer: int, call: AttentionCall) -> torch.Tensor:
        """Return the attention of one layer over stored and own KV, `[1, T, Hq, D]` in the dtype of the query.

        Tails hold the keys and values of the call already.

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

    def prepare(self, tokens: PassTokens, window: int | None, spec: AttentionSpec) -> PreparedAttention:
        """Prepare the attention of a forward pass, for its layers with one window."""
