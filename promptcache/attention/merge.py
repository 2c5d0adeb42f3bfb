"""Merge attention over disjoint sets of keys by the log-sum-exp of their scores. The result is exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from promptcache.attention.grouped_queries import GroupedQueries
from promptcache.attention.transfer import to_device

_MAX_NUMBERS_AT_ONCE = 1 << 20
_MAX_NUMBERS_ON_GPUS = 1 << 24
"""Partial outputs with at most this many numbers in total are weighted together; larger ones one by one, to save
memory. On a GPU each operation costs more than the memory, 64 MiB.
"""


class TokensOfSets(NamedTuple):
    """The tokens that attend to each of several sets of keys, one set after the other.

    Attributes:
        tokens: `[E]`, the tokens of the first set, then those of the second, and so on.
        places: `[E]`, n * T + token for the n-th set of a token, counted from 0. All are different.
        num_places: T times the largest number of sets of a token.
    """

    tokens: torch.Tensor
    places: torch.Tensor
    num_places: int

    @staticmethod
    def of(sets: Sequence[npt.NDArray[np.intp]], num_tokens: int, device: torch.device) -> TokensOfSets:
        """Return the tokens of sets among `num_tokens` tokens. A set has each token once."""
        used = np.zeros(num_tokens, dtype=np.intp)
        places = []
        for tokens in sets:
            places.append(used[tokens] * num_tokens + tokens)
            used[tokens] += 1
        flat, flat_places = (to_device(torch.from_numpy(np.concatenate(each)), device) for each in (sets, places))
        return TokensOfSets(flat, flat_places, int(used.max()) * num_tokens)


class PartialAttention(NamedTuple):
    """Attention of the last M' grouped queries over K sets of keys, or of some tokens over sets of their own.

    Attributes:
        out: `[K, Hkv, M', D]`; K is 1 unless all queries attend.
        lse: `[K, Hkv, M']`, the log-sum-exp of the scores.
        tokens: Some tokens: M' = E * G. None means the last queries.
    """

    out: torch.Tensor
    lse: torch.Tensor
    tokens: TokensOfSets | None = None


def merge(
    partials: Sequence[PartialAttention], queries: GroupedQueries, sinks: torch.Tensor | None = None
) -> torch.Tensor:
    """Merge attentions over disjoint sets of keys into the attention over all of them.

    Args:
        partials: The first one has all queries. Each query attends to a key in at least one of them.
        queries: The grouping of the queries.
        sinks: `[Hq]` scores that take part in the softmax and have no value (gpt-oss).

    Returns:
        `[1, Hkv, M, D]` in the dtype of the partial outputs.
    """
    first = partials[0]
    if sinks is None and len(partials) == 1:
        return first.out
    if sinks is None and len(partials) == 2 and partials[1].tokens is None and first.lse.shape == partials[1].lse.shape:
        return _merge_two(*partials)
    is_whole = all(each.tokens is None and each.lse.shape[1:] == first.lse.shape[1:] for each in partials)
    scores = [_spread(partial, queries) for partial in partials]
    sizes = [len(each) for each in scores]
    if sinks is not None:
        scores.append(queries.group_sinks(sinks.to(first.lse.dtype)))
    weights = torch.cat(scores).softmax(0)[: sum(sizes)]  # [sets, Hkv, M]
    most = _MAX_NUMBERS_AT_ONCE if first.out.device.type == "cpu" else _MAX_NUMBERS_ON_GPUS
    if is_whole and sum(sizes) * first.out[0].numel() <= most:
        outs = torch.cat([partial.out for partial in partials])
        return (outs * weights[..., None]).sum(0, keepdim=True).to(first.out.dtype)
    merged = torch.zeros(first.out[:1].shape, dtype=weights.dtype, device=weights.device)
    for partial, some in zip(partials, weights.split_with_sizes(sizes), strict=True):
        _add_weighted(merged, partial, some, queries)
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
    lse, tokens = partial.lse, partial.tokens
    if tokens is not None:
        places = lse.new_full((queries.num_kv_heads, tokens.num_places, queries.num_groups), -torch.inf)
        places.index_copy_(1, tokens.places, lse.view(queries.num_kv_heads, -1, queries.num_groups))
        return places.view(queries.num_kv_heads, -1, queries.size).transpose(0, 1)
    if lse.shape[2] == queries.size:
        return lse
    spread = lse.new_full((1, queries.num_kv_heads, queries.size), -torch.inf)
    spread[:, :, queries.size - lse.shape[2] :] = lse
    return spread


def _add_weighted(
    merged: torch.Tensor, partial: PartialAttention, weights: torch.Tensor, queries: GroupedQueries
) -> None:
    """Add the partial outputs to `merged`, in place, each times its weight of `[K, Hkv, M]`."""
    tokens = partial.tokens
    if tokens is not None:
        by_place = weights.transpose(0, 1).reshape(queries.num_kv_heads, tokens.num_places, queries.num_groups)
        weight = by_place.index_select(1, tokens.places)[None, ..., None]  # [1, Hkv, E, G, 1]
        out = partial.out.reshape(*weight.shape[:-1], -1)
        queries.by_token(merged).index_add_(2, tokens.tokens, out * weight)
        return
    start = merged.shape[2] - partial.out.shape[2]
    for out, weight in zip(partial.out, weights[:, :, start:, None], strict=True):
        merged[0, :, start:].addcmul_(out, weight)
