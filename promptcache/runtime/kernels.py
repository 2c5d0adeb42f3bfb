"""Attention with its log-sum-exp: the kernels, and which of them computes what.

Comes in: queries, keys and values as plain tensors. Goes out: attention outputs with the log-sum-exp of the scores
(natural logarithm; fp32, or fp64 for fp64 inputs). This file knows no cache, no model and no positions: who sees whom
arrives as a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import torch

Kernel: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""From queries, keys and values to output and log-sum-exp; every query sees every key."""


def kernel_for(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float, softcap: float | None = None
) -> Kernel:
    """Return what computes attention of more than one query over keys and values like these; arguments as `attend`.

    For loops over many pieces of keys: the choice, and its checks, take as long as a small piece.
    """
    if _has_fused(query, key, value, softcap):
        return partial(_FUSED, scale=scale)
    return partial(_portable, scale=scale, mask=None, causal=False, softcap=softcap)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    mask: torch.Tensor | None = None,
    causal: bool = False,
    softcap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention output and log-sum-exp of `query` over `key` and `value`.

    Args:
        query: `[B, Hq, T, D]`, T > 0.
        key: `[B, Hkv, S, D]`, S > 0 and Hq a multiple of Hkv.
        value: As `key`.
        scale: Factor on the dot products.
        mask: Bool `[T, S]` or `[B, 1, T, S]`, True where a query sees a key; a query may see no key at all.
        causal: Query i sees keys 0..i only; needs T == S and no mask.
        softcap: Caps the scaled scores s to `softcap * tanh(s / softcap)` (Gemma 2).

    Returns:
        `out [B, Hq, T, D]` in the dtype of `query` and `lse [B, Hq, T]`, minus infinity where a query sees no key.
    """
    assert min(key.shape[2], query.shape[2]) > 0, "the fused kernel crashes on empty inputs"
    assert key.shape[:3] == value.shape[:3], "the fused kernel would read past the shorter one"
    if query.shape[2] == 1 and query.shape[1] > key.shape[1]:  # one token: its query groups are rows over the same keys
        batch, heads, _, width = query.shape
        grouped = query.reshape(batch, key.shape[1], -1, width)
        rows = None if mask is None else mask.expand(*mask.shape[:-2], grouped.shape[2], -1)
        out, lse = attend(grouped, key, value, scale=scale, mask=rows, softcap=softcap)
        return out.reshape(batch, heads, 1, -1), lse.reshape(batch, heads, 1)
    if _has_fused(query, key, value, softcap):
        return _fused_cpu(query, key, value, scale, mask, causal)
    return _portable(query, key, value, scale, mask, causal, softcap)


_FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def _has_fused(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, softcap: float | None) -> bool:
    return softcap is None and query.device.type == "cpu" and key.shape[3] == value.shape[3]


def _fused_cpu(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    mask: torch.Tensor | None,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    bias = None
    if mask is not None:
        bias = torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(~mask, -torch.inf)
        bias = bias if bias.ndim == 4 else bias[None, None]
    out, lse = _FUSED(query, key, value, 0.0, causal, attn_mask=bias, scale=scale)
    if mask is not None:  # the kernel reports 0 for a row that sees nothing (torch 2.13)
        lse = lse.masked_fill(~mask.any(-1), -torch.inf)
    return out, lse


def _portable(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    mask: torch.Tensor | None,
    causal: bool,
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    groups = query.shape[1] // key.shape[1]
    batch, heads, rows, width = query.shape
    accumulate = torch.promote_types(query.dtype, torch.float32)
    folded = query.reshape(batch, key.shape[1], groups * rows, width)
    scores = (folded @ key.transpose(-1, -2)).to(accumulate) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.view(batch, heads, rows, key.shape[2])
    if causal:
        mask = torch.ones(rows, key.shape[2], dtype=torch.bool, device=query.device).tril_()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.nan_to_num(neginf=0.0)[..., None]).exp()
    out = weights.to(value.dtype).view(batch, key.shape[1], groups * rows, key.shape[2]) @ value
    return out.view(batch, heads, rows, value.shape[3]), lse
