"""Attention over parts of the keys, and their merge into attention over all of them.

Comes in: queries, keys and values as plain tensors. Goes out: attention outputs. This file knows no cache, no model and
no positions: who sees whom arrives as a slice or as a mask. Partial results over disjoint sets of keys merge exactly by
their log-sum-exp.

All parts are computed over *folded* queries: heads that share keys, query tokens and rows of the batch are one long
query `[1, Hkv, M, D]` over the same keys, M = B * T * G in this order. Keys are read once for all of them, nothing is
repeated, and the last tokens of a request are the last rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from promptcache.runtime.kernels import attend

_AT_ONCE = 1 << 20
"""Numbers in all parts together up to which they are weighted at once; beyond, one after another, in less memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """How queries `[B, Hq, T, D]` over `Hkv` heads of keys are folded.

    Attributes:
        batch, tokens: B and T.
        kv_heads: Hkv.
        groups: G, query heads for each head of keys.
    """

    batch: int
    tokens: int
    kv_heads: int
    groups: int

    @property
    def size(self) -> int:
        """M, the number of folded queries for each head of keys."""
        return self.batch * self.tokens * self.groups

    @staticmethod
    def of(query: torch.Tensor, kv_heads: int) -> Fold:
        """Return how `query` is folded over so many heads of keys."""
        batch, heads, tokens, _ = query.shape
        return Fold(batch=batch, tokens=tokens, kv_heads=kv_heads, groups=heads // kv_heads)

    def fold(self, states: torch.Tensor) -> torch.Tensor:
        """Return `[B, Hq, T, D]` as `[1, Hkv, M, D]`; a view for a single token of one request."""
        split = states.reshape(self.batch, self.kv_heads, self.groups, self.tokens, -1)
        return split.permute(1, 0, 3, 2, 4).reshape(1, self.kv_heads, self.size, -1)

    def fold_lse(self, lse: torch.Tensor) -> torch.Tensor:
        """Return `[B, Hq, T]` as `[1, Hkv, M]`."""
        return self.fold(lse[..., None])[..., 0]

    def unfold(self, states: torch.Tensor) -> torch.Tensor:
        """Return `[1, Hkv, M, D]` as `[B, T, Hq, D]`."""
        split = states.view(self.kv_heads, self.batch, self.tokens, self.groups, -1)
        return split.permute(1, 2, 0, 3, 4).reshape(self.batch, self.tokens, self.kv_heads * self.groups, -1)

    def fold_mask(self, mask: torch.Tensor) -> torch.Tensor:
        """Return `[T', S]` (all rows alike) or `[R, T', S]` as `[R * T' * G, S]`."""
        every_row = mask if mask.ndim == 3 else mask.expand(self.batch, *mask.shape)
        return every_row[:, :, None].expand(-1, -1, self.groups, -1).flatten(0, 2)

    def fold_sinks(self, sinks: torch.Tensor) -> torch.Tensor:
        """Return `[Hq]` as `[1, Hkv, M]`."""
        return sinks.view(self.kv_heads, self.groups).repeat(1, self.batch * self.tokens)[None]


class Partial(NamedTuple):
    """Attention of the last M' folded queries over K sets of keys: `out [K, Hkv, M', D]` and `lse [K, Hkv, M']`.

    `rows` are the rows of the batch that it is about, all of their tokens; None means every row. K is 1 unless it is
    about every query of every row.
    """

    out: torch.Tensor
    lse: torch.Tensor
    rows: torch.Tensor | None = None


def attend_shared(
    folded: torch.Tensor,
    fold: Fold,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    first_token: int = 0,
    rows: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    unseen: torch.Tensor | None = None,
    softcap: float | None = None,
) -> Partial:
    """Attend from folded queries to keys `[1, Hkv, S, D]` that all of them share.

    Args:
        folded: `[1, Hkv, M, D]`.
        first_token: Only tokens from this one on see the keys; of a single request.
        rows: Rows of the batch that see the keys; None means all.
        mask: Bool `[T', S]` or `[R, T', S]`: who among those sees which key.
        unseen: Bool `[R, T']`: who among those sees none of them.
    """
    if first_token:
        folded = folded[:, :, first_token * fold.groups :]
    if rows is not None:
        folded = _by_row(folded, fold).index_select(2, rows).flatten(2, 3)
    bias = None if mask is None else fold.fold_mask(mask)
    out, lse = attend(folded, key, value, scale=scale, mask=bias, softcap=softcap)
    if unseen is not None:
        lse = lse.masked_fill(unseen[:, :, None].expand(-1, -1, fold.groups).flatten(), -torch.inf)
    return Partial(out, lse, rows)


def merge(partials: Sequence[Partial], fold: Fold, sinks: torch.Tensor | None = None) -> torch.Tensor:
    """Merge attentions over disjoint sets of keys into the attention over all of them.

    Args:
        partials: The first is about every query; together every query sees a key.
        sinks: `[Hq]` scores that take part in the softmax and carry no value (gpt-oss).

    Returns:
        `[1, Hkv, M, D]` in the dtype of the partial outputs.
    """
    first = partials[0]
    num_sets = sum(len(partial.out) for partial in partials)
    if num_sets == 1 and sinks is None:
        return first.out
    scores = [_spread(partial, fold) for partial in partials]
    if sinks is not None:
        scores.append(fold.fold_sinks(sinks.to(first.lse.dtype)))
    weights = torch.cat(scores).softmax(0)[:num_sets, ..., None]  # [sets, Hkv, M, 1]
    outs = [partial.out for partial in partials]
    if num_sets * first.out[0].numel() <= _AT_ONCE and all(each.shape[1:] == first.out.shape[1:] for each in outs):
        return (torch.cat(outs) * weights).sum(0, keepdim=True).to(first.out.dtype)
    merged = torch.zeros(first.out[:1].shape, dtype=weights.dtype, device=weights.device)
    singles = [partial._replace(out=out[None]) for partial in partials for out in partial.out]
    for single, weight in zip(singles, weights, strict=True):
        _add(merged, single, weight[None], fold)
    return merged.to(first.out.dtype)


def _spread(partial: Partial, fold: Fold) -> torch.Tensor:
    """Return the log-sum-exp `[1, Hkv, M]` of every query: minus infinity for those that a part is not about."""
    lse = partial.lse
    if lse.shape[2] == fold.size:
        return lse
    spread = lse.new_full((1, fold.kv_heads, fold.size), -torch.inf)
    if partial.rows is None:
        spread[:, :, fold.size - lse.shape[2] :] = lse
    else:
        _by_row(spread[..., None], fold).index_copy_(2, partial.rows, _rows_of(lse[..., None], partial.rows))
    return spread


def _add(merged: torch.Tensor, partial: Partial, weight: torch.Tensor, fold: Fold) -> None:
    if partial.out.shape == merged.shape:
        merged.addcmul_(partial.out, weight)
    elif partial.rows is None:
        start = merged.shape[2] - partial.out.shape[2]
        merged[:, :, start:].addcmul_(partial.out, weight[:, :, start:])
    else:
        weights = _by_row(weight, fold).index_select(2, partial.rows)
        _by_row(merged, fold).index_add_(2, partial.rows, _rows_of(partial.out, partial.rows) * weights)


def _by_row(states: torch.Tensor, fold: Fold) -> torch.Tensor:
    return states.view(1, fold.kv_heads, fold.batch, fold.tokens * fold.groups, -1)


def _rows_of(states: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return states.reshape(1, states.shape[1], len(rows), -1, states.shape[3])
