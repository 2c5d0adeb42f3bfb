"""Merge attention over disjoint sets of keys by the log-sum-exp of their scores. The result is exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from promptcache.runtime.attention.grouped_queries import GroupedQueries

_MAX_NUMBERS_AT_ONCE = 1 << 20
"""Partial outputs with at most this many numbers in total are weighted together; larger ones one by one, to save
memory.
"""


class PartialAttention(NamedTuple):
    """Attention of the last M' grouped queries over K sets of keys.

    Attributes:
        out: `[K, Hkv, M', D]`; K is 1 unless all queries of all rows attend.
        lse: `[K, Hkv, M']`, the log-sum-exp of the scores.
        rows: Indices of the batch rows that attend, with all of their tokens; None means all rows.
    """

    out: torch.Tensor
    lse: torch.Tensor
    rows: torch.Tensor | None = None


def merge(
    partials: Sequence[PartialAttention], queries: GroupedQueries, sinks: torch.Tensor | None = None
) -> torch.Tensor:
    """Merge attentions over disjoint sets of keys into the attention over all of them.

    Args:
        partials: All queries attend in the first one. Each query attends to a key of at least one of them.
        queries: The grouping of the queries.
        sinks: `[Hq]` scores that take part in the softmax and have no value (gpt-oss).

    Returns:
        `[1, Hkv, M, D]` in the dtype of the partial outputs.
    """
    first = partials[0]
    if sinks is None and len(partials) == 1:
        return first.out
    if sinks is None and len(partials) == 2 and first.lse.shape == partials[1].lse.shape:
        return _merge_two(*partials)
    num_sets = sum(len(partial.out) for partial in partials)
    scores = [_spread(partial, queries) for partial in partials]
    if sinks is not None:
        scores.append(queries.group_sinks(sinks.to(first.lse.dtype)))
    weights = torch.cat(scores).softmax(0)[:num_sets, ..., None]  # [sets, Hkv, M, 1]
    outs = [partial.out for partial in partials]
    small = num_sets * first.out[0].numel() <= _MAX_NUMBERS_AT_ONCE
    if small and all(each.shape[1:] == first.out.shape[1:] for each in outs):
        return (torch.cat(outs) * weights).sum(0, keepdim=True).to(first.out.dtype)
    merged = torch.zeros(first.out[:1].shape, dtype=weights.dtype, device=weights.device)
    singles = [partial._replace(out=out[None]) for partial in partials for out in partial.out]
    for single, weight in zip(singles, weights, strict=True):
        _add_weighted(merged, single, weight[None], queries)
    return merged.to(first.out.dtype)


def _merge_two(first: PartialAttention, second: PartialAttention) -> torch.Tensor:
    """Merge two attentions of all queries, each over one set of keys.

    A decode step over one segment calls this in every layer, so each operation counts, even one without effect.
    """
    weight = (second.lse - first.lse).sigmoid_()[..., None]
    if first.out.dtype == weight.dtype:
        return torch.lerp(first.out, second.out, weight)
    return torch.lerp(first.out.to(weight.dtype), second.out.to(weight.dtype), weight).to(first.out.dtype)


def _spread(partial: PartialAttention, queries: GroupedQueries) -> torch.Tensor:
    """Return the log-sum-exp `[K, Hkv, M]` of all queries; minus infinity for queries that do not attend."""
    lse = partial.lse
    if lse.shape[2] == queries.size:
        return lse
    spread = lse.new_full((1, queries.num_kv_heads, queries.size), -torch.inf)
    if partial.rows is None:
        spread[:, :, queries.size - lse.shape[2] :] = lse
    else:
        queries.by_row(spread[..., None]).index_copy_(2, partial.rows, _split_rows(lse[..., None], partial.rows))
    return spread


def _add_weighted(
    merged: torch.Tensor, partial: PartialAttention, weight: torch.Tensor, queries: GroupedQueries
) -> None:
    """Add `weight` times the partial output to `merged`, in place."""
    if partial.out.shape == merged.shape:
        merged.addcmul_(partial.out, weight)
    elif partial.rows is None:
        start = merged.shape[2] - partial.out.shape[2]
        merged[:, :, start:].addcmul_(partial.out, weight[:, :, start:])
    else:
        weights = queries.by_row(weight).index_select(2, partial.rows)
        queries.by_row(merged).index_add_(2, partial.rows, _split_rows(partial.out, partial.rows) * weights)


def _split_rows(states: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return states.reshape(1, states.shape[1], len(rows), -1, states.shape[3])
