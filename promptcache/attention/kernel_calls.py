"""Attention as kernel calls over stored KV, tails and chunks, and a merge of their results.

A kernel computes attention over one set of keys and returns the log-sum-exp of the scores. All backends with such a
kernel share these calls. Own KV is attended to in calls of two kinds: one for all rows with a single new token whose
tails share a slab, and one for each row with several.

Query heads and tokens that share keys are one long query, `[1, Hkv, M, D]` with M = T * G in this order, so the last
tokens are the last grouped queries. Keys are read once for all of them and never repeated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from promptcache.attention.backend import AttentionCall, AttentionSpec
from promptcache.attention.pass_tokens import PassTokens, RowChunk, TailGroup
from promptcache.attention.transfer import to_device
from promptcache.kv import LayerViews

_MAX_TOKENS_AT_ONCE = 512
"""Approximate number of tokens of kernel calls that are merged together. More would take much memory."""

_MAX_NUMBERS_AT_ONCE = 1 << 20
_MAX_NUMBERS_ON_GPUS = 1 << 24
"""Partial outputs with at most this many numbers in total are weighted together; larger ones one by one, to save
memory. On a GPU each operation costs more than the memory, 64 MiB.
"""


class KernelBackend(ABC):
    """Base class of backends with a kernel for attention over one set of keys.

    Attributes:
        groups_heads: Whether `attend` reads keys once for all heads of a group. Otherwise several tokens of one row are
            grouped before. This copies queries and results, and saves reading stored keys several times.
    """

    name: str
    groups_heads = False

    @abstractmethod
    def supports(self, spec: AttentionSpec) -> bool:
        """Whether the kernel can compute attention of this kind."""

    @abstractmethod
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall, mask: Any, causal: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the attention of queries, `[B, Hq, T, D]` in their dtype, and its log-sum-exp.

        The log-sum-exp `[B, Hq, T]` is natural, in float32, or float64 for float64 inputs. It is minus infinity where a
        query attends to no key.

        Args:
            query: `[B, Hq, T, D]`, with T > 0.
            key, value: `[B, Hkv, S, D]`, with S > 0. Hq is a multiple of Hkv.
            call: Has scale and soft cap.
            mask: From `prepare_mask`, or None.
            causal: Query i attends to keys 0..i only, with T == S and no mask.
        """

    def prepare_mask(self, mask: torch.Tensor, spec: AttentionSpec) -> Any:
        """Return a mask, bool `[T, S]`, or `[B, 1, T, S]` if Hq == Hkv, in the form for `attend`, once for all layers.

        The default is the mask on the device.

        Args:
            mask: On the host.
        """
        return to_device(mask, spec.device)

    def prepare(self, tokens: PassTokens, window: int | None, spec: AttentionSpec) -> KernelAttention:
        """Prepare the kernel calls of one pass."""
        return KernelAttention(tokens, window, spec, self)


class SomeTokens(NamedTuple):
    """Kernel calls in which some tokens attend, to be merged together.

    Attributes:
        calls: The keys of each call, with its prepared mask.
        sizes: The number of tokens of each call.
        tokens: `[E]`, the tokens of the first call, then those of the second, and so on.
        places: `[E]`, n * T + token for the n-th call of a token, counted from 0. All are different.
        num_places: T times the largest number of calls of a token.
    """

    calls: Sequence[tuple[LayerViews, Any]]
    sizes: Sequence[int]
    tokens: torch.Tensor
    places: torch.Tensor
    num_places: int


class PartialAttention(NamedTuple):
    """Attention of the last M' grouped queries over one set of keys, or of some tokens over sets of their own.

    Attributes:
        out: `[1, Hkv, M', D]`.
        lse: `[1, Hkv, M']`, the log-sum-exp of the scores.
        some: Some tokens: M' = E * G. None means the last queries.
    """

    out: torch.Tensor
    lse: torch.Tensor
    some: SomeTokens | None = None


_StoredCalls: TypeAlias = tuple[list[tuple[LayerViews, int, Any]], list[SomeTokens]]
"""Keys, the first token that attends and a prepared mask of calls in which all tokens from it on attend; the others."""


class KernelAttention:
    """Attention of one pass by kernel calls, the same in every layer with one window."""

    def __init__(self, tokens: PassTokens, window: int | None, spec: AttentionSpec, backend: KernelBackend) -> None:
        self._backend, self._spec = backend, spec
        # Without a window, single tokens attend to whole segments, so later steps of the same rows make the same calls.
        key = tokens.attending().tobytes() if window is None and not tokens.chunks else None
        found: _StoredCalls | None = None if key is None else tokens.kept.get(key)
        if found is None:
            found = self._calls_over_stored(tokens, window)
            if key is not None:
                tokens.kept[key] = found
        self._of_all_tokens, self._of_some_tokens = found
        self._chunks = list[tuple[RowChunk, Any]]()
        for chunk in tokens.chunks:
            mask = tokens.chunk_mask(chunk, window)
            self._chunks.append((chunk, None if mask is None else backend.prepare_mask(mask, spec)))
        self._tails = list[tuple[TailGroup, Any, torch.Tensor | None]]()
        for group in tokens.groups:
            mask = tokens.tail_mask(group, window)
            if mask is not None:
                mask = backend.prepare_mask(mask.expand(-1, -1, spec.num_groups, -1), spec)
            is_all = len(group.indices) == len(group.views[0][0])
            used = None if is_all else to_device(torch.tensor(group.indices), tokens.device)
            self._tails.append((group, mask, used))

    def _calls_over_stored(self, tokens: PassTokens, window: int | None) -> _StoredCalls:
        """Return a call for each segment: those in which all tokens attend from a first one on, and the others.

        The others are in groups of limited size.
        """
        num_tokens, is_one_row = len(tokens.positions), len(tokens.chunks) == 1 and not tokens.groups
        seen = [*tokens.seen(window)]
        if is_one_row and (self._backend.groups_heads or not seen):  # nothing is copied if each head is a group
            heads = self._spec.num_kv_heads * self._spec.num_groups
            self._spec = replace(self._spec, num_kv_heads=heads, num_groups=1)
        of_all, of_some = list[tuple[LayerViews, int, Any]](), list[tuple[LayerViews, Any, Any]]()
        for view, users, start, is_cut in seen:
            mask = None
            if is_cut and window is not None:
                inside = tokens.positions[users][:, None] - view.position_array()[start:] < window  # [T', S]
                if not inside.all():
                    grouped = torch.from_numpy(inside)[:, None].expand(-1, self._spec.num_groups, -1)
                    mask = self._backend.prepare_mask(grouped.flatten(0, 1), self._spec)
            # The last tokens of a row are the end of its queries, which needs no copy.
            first = int(users[0]) if is_one_row else 0
            if len(users) == num_tokens - first:
                of_all.append((view.layers(start), first, mask))
            else:
                of_some.append((view.layers(start), users, mask))
        ends = accumulate(len(users) for _, users, _ in of_some)
        groups = list[SomeTokens]()
        for _, group in groupby(zip(of_some, ends, strict=True), key=lambda each: each[1] // _MAX_TOKENS_AT_ONCE):
            calls = [call for call, _ in group]
            sets, places = [users for _, users, _ in calls], []
            num_calls = np.zeros(num_tokens, dtype=np.intp)  # of each token
            for users in sets:
                places.append(num_calls[users] * num_tokens + users)
                num_calls[users] += 1
            flat, flat_places = (
                to_device(torch.from_numpy(np.concatenate(each)), tokens.device) for each in (sets, places)
            )
            views = [(views, mask) for views, _, mask in calls]
            groups.append(SomeTokens(views, [*map(len, sets)], flat, flat_places, int(num_calls.max()) * num_tokens))
        return of_all, groups

    def run(self, layer: int, call: AttentionCall) -> torch.Tensor:
        """Return the attention of one layer, `[1, T, Hq, D]`."""
        spec, attend = self._spec, self._backend.attend
        heads, groups = spec.num_kv_heads, spec.num_groups
        own = [self._attend_tails(call, layer, *each) for each in self._tails]
        for chunk, mask in self._chunks:
            query, keys, values = (states[:, :, chunk.start : chunk.stop] for states in call[:3])
            out, lse = attend(query, keys, values, call, mask, mask is None)
            own.append((_grouped(out, heads), _grouped(lse[..., None], heads)[..., 0]))
        partials = [PartialAttention(*(own[0] if len(own) == 1 else _joined(own)))]
        grouped = _grouped(call.query, heads)
        for views, first, mask in self._of_all_tokens:
            chosen = grouped[:, :, first * groups :] if first else grouped
            partials.append(PartialAttention(*attend(chosen, *views[layer], call, mask, False)))
        for some in self._of_some_tokens:
            by_token = grouped.view(1, heads, spec.num_tokens, groups, -1)
            queries = by_token.index_select(2, some.tokens).split_with_sizes(some.sizes, dim=2)  # [1, Hkv, E, G, D]
            results = [
                attend(query.flatten(2, 3), *views[layer], call, mask, False)
                for query, (views, mask) in zip(queries, some.calls, strict=True)
            ]
            partials.append(PartialAttention(*(results[0] if len(results) == 1 else _joined(results)), some))
        merged = merge(partials, spec, call.sinks)
        if spec.num_tokens == 1:
            return merged.reshape(1, 1, heads * groups, -1)
        by_head = merged.reshape(heads, spec.num_tokens, groups, -1).transpose(0, 1)
        return by_head.reshape(1, spec.num_tokens, heads * groups, -1)

    def _attend_tails(
        self, call: AttentionCall, layer: int, group: TailGroup, mask: Any, used: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend from one token of each row to its tail; heads of a group are queries over the same keys."""
        keys, values = group.views[layer]  # [R, Hkv, S, D]
        chosen = call.query[0, :, group.start : group.stop]
        by_row = chosen.reshape(self._spec.num_kv_heads, self._spec.num_groups, *chosen.shape[1:]).permute(2, 0, 1, 3)
        if used is not None:
            by_row = by_row.new_zeros((len(keys), *by_row.shape[1:])).index_copy_(0, used, by_row)
        out, lse = self._backend.attend(by_row, keys, values, call, mask, False)  # [R, Hkv, G, D]
        if used is not None:
            out, lse = out.index_select(0, used), lse.index_select(0, used)
        return out.transpose(0, 1).flatten(1, 2)[None], lse.transpose(0, 1).flatten(1, 2)[None]


def _grouped(states: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    """Return `[1, Hq, T, D]` as `[1, Hkv, M, D]`; a view for a single token, and for groups of one head."""
    _, heads, num_tokens, width = states.shape
    if num_tokens == 1 or heads == num_kv_heads:
        return states.reshape(1, num_kv_heads, -1, width)
    split = states.reshape(num_kv_heads, heads // num_kv_heads, num_tokens, width)
    return split.transpose(1, 2).reshape(1, num_kv_heads, -1, width)


def _joined(results: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return outputs and log-sum-exps of queries, those of the first result first."""
    out, lse = (torch.cat(each, dim=2) for each in zip(*results, strict=True))
    return out, lse


def merge(partials: Sequence[PartialAttention], spec: AttentionSpec, sinks: torch.Tensor | None = None) -> torch.Tensor:
    """Merge attentions over disjoint sets of keys by the log-sum-exp of their scores. The result is exact.

    Args:
        partials: The first one has all queries. Each query attends to a key in at least one of them.
        spec: Has the numbers of tokens, heads and groups.
        sinks: `[Hq]` scores that take part in the softmax and have no value (gpt-oss).

    Returns:
        `[1, Hkv, M, D]` in the dtype of the partial outputs.
    """
    first, heads, groups = partials[0], spec.num_kv_heads, spec.num_groups
    if sinks is None and len(partials) == 1:
        return first.out
    is_whole = all(each.some is None and each.lse.shape == first.lse.shape for each in partials)
    if sinks is None and len(partials) == 2 and is_whole:
        # A decode step over one segment does this in every layer, so each operation counts, even one without effect.
        weight = (partials[1].lse - first.lse).sigmoid_()[..., None]
        if first.out.dtype == weight.dtype:
            return torch.lerp(first.out, partials[1].out, weight)
        wide = torch.lerp(first.out.to(weight.dtype), partials[1].out.to(weight.dtype), weight)
        return wide.to(first.out.dtype)
    scores = [_scores_of_all(each, spec) for each in partials]
    sizes = [len(each) for each in scores]
    if sinks is not None:
        by_head = sinks.to(first.lse.dtype).view(heads, groups)
        scores.append(by_head.repeat(1, spec.num_tokens)[None])
    weights = torch.cat(scores).softmax(0)[: sum(sizes)]  # [sets, Hkv, M]
    most = _MAX_NUMBERS_AT_ONCE if first.out.device.type == "cpu" else _MAX_NUMBERS_ON_GPUS
    if is_whole and len(partials) * first.out.numel() <= most:
        outs = torch.cat([each.out for each in partials])
        return (outs * weights[..., None]).sum(0, keepdim=True).to(first.out.dtype)
    merged = torch.zeros(first.out.shape, dtype=weights.dtype, device=weights.device)
    for (out, _, some), own in zip(partials, weights.split_with_sizes(sizes), strict=True):
        if some is None:
            start = merged.shape[2] - out.shape[2]
            merged[:, :, start:].addcmul_(out, own[:, :, start:, None])
        else:
            by_place = own.transpose(0, 1).reshape(heads, some.num_places, groups)
            weight = by_place.index_select(1, some.places)[None, ..., None]  # [1, Hkv, E, G, 1]
            by_token = merged.view(1, heads, spec.num_tokens, groups, -1)
            by_token.index_add_(2, some.tokens, out.reshape(*weight.shape[:-1], -1) * weight)
    return merged.to(first.out.dtype)


def _scores_of_all(partial: PartialAttention, spec: AttentionSpec) -> torch.Tensor:
    """Return the log-sum-exp `[K, Hkv, M]` of all queries over K sets of keys; minus infinity for those not there."""
    lse, some, heads, size = partial.lse, partial.some, spec.num_kv_heads, spec.num_tokens * spec.num_groups
    if some is not None:
        places = lse.new_full((heads, some.num_places, spec.num_groups), -torch.inf)
        places.index_copy_(1, some.places, lse.view(heads, -1, spec.num_groups))
        return places.view(heads, -1, size).transpose(0, 1)
    if lse.shape[2] == size:
        return lse
    scores = lse.new_full((1, heads, size), -torch.inf)
    scores[:, :, size - lse.shape[2] :] = lse
    return scores
