"""Attention with its log-sum-exp, and the merge of partial attentions.

Comes in: queries, keys and values as plain tensors. Goes out: attention outputs. This file knows no cache, no model and
no positions: who sees whom arrives as a slice or as a mask. Partial results over disjoint sets of keys merge exactly by
their log-sum-exp (natural logarithm; fp32, or fp64 for fp64 inputs).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch


class Partial(NamedTuple):
    """Attention of queries `[first_row:]` over some of their keys: `out [R, Hq, T', D]` and `lse [R, Hq, T']`.

    `rows` are the R rows of the batch that it is about; None means all.
    """

    first_row: int
    out: torch.Tensor
    lse: torch.Tensor
    rows: torch.Tensor | None = None


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
    if query.device.type == "cpu" and softcap is None and key.shape[3] == value.shape[3]:
        return _fused_cpu(query, key, value, scale, mask, causal)
    return _portable(query, key, value, scale, mask, causal, softcap)


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
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=bias, scale=scale
    )
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


def attend_shared(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    mask: torch.Tensor | None = None,
    softcap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `attend`, over keys that every row of the batch shares, with batch and query groups folded into the query
    length.

    Args:
        query: `[B, Hq, T, D]`.
        key: `[Hkv, S, D]`.
        value: As `key`.
        mask: Bool `[T, S]` or `[B, T, S]`.
    """
    batch, heads, rows, width = query.shape
    groups = heads // key.shape[0]
    folded = (
        query.reshape(batch, key.shape[0], groups * rows, width).transpose(0, 1).reshape(1, key.shape[0], -1, width)
    )
    if mask is not None:  # to [B * G * T, S], the order of the folded queries
        mask = mask.expand(batch, *mask.shape[-2:])[:, None].expand(-1, groups, -1, -1).flatten(0, 2)
    out, lse = attend(folded, key[None], value[None], scale=scale, mask=mask, softcap=softcap)
    out = out.view(key.shape[0], batch, groups * rows, -1).transpose(0, 1).reshape(batch, heads, rows, -1)
    lse = lse.view(key.shape[0], batch, groups * rows).transpose(0, 1).reshape(batch, heads, rows)
    return out, lse


def merge(partials: Sequence[Partial], rows: int, sinks: torch.Tensor | None = None) -> torch.Tensor:
    """Merge attentions over disjoint sets of keys into the attention over all of them.

    Args:
        partials: Each covers query rows `[first_row:]`; together every row sees a key.
        rows: T, the number of queries.
        sinks: `[Hq]` scores that take part in the softmax and carry no value (gpt-oss).

    Returns:
        `[B, Hq, T, D]` in the dtype of the partial outputs.
    """
    first = partials[0]
    assert first.rows is None, "the first part is about every row"
    if len(partials) == 1 and sinks is None and first.first_row == 0:
        return first.out
    batch, heads, _, width = first.out.shape
    lse = first.lse.new_full((len(partials), batch, heads, rows), -torch.inf)  # [K, B, Hq, T]
    for index, partial in enumerate(partials):
        rows_of = slice(None) if partial.rows is None else partial.rows
        lse[index, rows_of, :, partial.first_row :] = partial.lse
    total = lse.logsumexp(0)
    if sinks is not None:
        total = torch.logaddexp(total, sinks.to(total.dtype)[None, :, None])
    weights = (lse - total).exp()
    merged = total.new_zeros((batch, heads, rows, width))
    for index, partial in enumerate(partials):
        start = partial.first_row
        if partial.rows is None:
            merged[:, :, start:].addcmul_(partial.out.to(merged.dtype), weights[index, :, :, start:, None])
        else:
            weighted = partial.out * weights[index, partial.rows, :, start:, None]
            merged[:, :, start:].index_add_(0, partial.rows, weighted)
    return merged.to(first.out.dtype)
