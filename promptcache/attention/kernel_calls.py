"""Attention as kernel calls over stored KV, tails and chunks, and a merge of their results.

A kernel computes attention over one set of keys and returns the log-sum-exp of the scores. All backends with such a
kernel share these calls. Own KV is attended to in calls of two kinds: one for all rows with a single new token whose
tails share a slab, and one for each row with several.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import torch

from promptcache.attention.backend import AttentionCall, AttentionSpec
from promptcache.attention.grouped_queries import GroupedQueries
from promptcache.attention.merge import PartialAttention, TokensOfSets, merge
from promptcache.attention.pass_tokens import KVView, PassTokens, RowChunk, SegmentMask, TailGroup
from promptcache.attention.transfer import to_device
from promptcache.kv import LayerViews

_MAX_TOKENS_AT_ONCE = 512
"""Approximate number of tokens of kernel calls that are merged together. More would take much memory."""


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

    @abstractmethod
    def prepare_mask(self, mask: torch.Tensor, spec: AttentionSpec) -> Any:
        """Return a mask, bool `[T, S]`, or `[B, 1, T, S]` if Hq == Hkv, in the form for `attend`, once for all layers.

        Args:
            mask: On the host.
        """

    def prepare(self, tokens: PassTokens, window: int | None, spec: AttentionSpec) -> KernelAttention:
        """Prepare the kernel calls of one pass."""
        return KernelAttention(tokens, window, spec, self)


class _AllTokens(NamedTuple):
    """A kernel call in which all tokens attend from `first_query` on, with its prepared mask."""

    views: LayerViews
    first_query: int
    mask: Any


class _SomeTokens(NamedTuple):
    """Kernel calls in which some tokens attend, to be merged together.

    Attributes:
        calls: The keys of each call, with its prepared mask.
        sizes: The number of tokens of each call.
        tokens: The tokens of all calls.
    """

    calls: tuple[tuple[LayerViews, Any], ...]
    sizes: tuple[int, ...]
    tokens: TokensOfSets


class _Stored(NamedTuple):
    """The kernel calls over stored KV."""

    all_tokens: tuple[_AllTokens, ...]
    some_tokens: tuple[_SomeTokens, ...]


class KernelAttention:
    """Attention of one pass by kernel calls, the same in every layer with one window."""

    def __init__(self, tokens: PassTokens, window: int | None, spec: AttentionSpec, backend: KernelBackend) -> None:
        self._backend, self._spec, self._queries = backend, spec, spec.queries
        key = tokens.kept_key(window)
        stored = None if key is None else tokens.kept.get(key)
        if stored is None:
            seen = tokens.stored(window)
            if tokens.is_chunk and (backend.groups_heads or not seen):
                self._queries = spec.queries.by_head()  # nothing is copied
            stored = self._prepared_calls(seen, tokens.device)
        if key is not None:
            tokens.kept[key] = stored
        self._stored: _Stored = stored
        self._chunks = [(each, self._prepared_mask(tokens.chunk_mask(each, window))) for each in tokens.chunks]
        self._tails = [
            (each, self._prepared_mask(self._by_group(tokens.tail_mask(each, window))), _some(each, tokens.device))
            for each in tokens.groups
        ]

    def run(self, layer: int, call: AttentionCall) -> torch.Tensor:
        """Return the attention of one layer, `[1, T, Hq, D]`."""
        queries = self._queries
        grouped = queries.group(call.query)
        own = [
            *(self._attend_tails(call, layer, group, mask, some) for group, mask, some in self._tails),
            *(self._attend_chunk(call, chunk, mask) for chunk, mask in self._chunks),
        ]
        out, lse = own[0] if len(own) == 1 else (torch.cat(parts, dim=2) for parts in zip(*own, strict=True))
        partials = [PartialAttention(out, lse), *self._attend_stored(grouped, layer, call)]
        return queries.ungroup(merge(partials, queries, call.sinks))

    def _attend_tails(
        self, call: AttentionCall, layer: int, group: TailGroup, mask: Any, some: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend from one token of each row to its tail; heads of a group are queries over the same keys."""
        keys, values = group.views.by_layer[layer]  # [R, Hkv, S, D]
        heads, groups = self._queries.num_kv_heads, self._queries.num_groups
        chosen = call.query[0, :, group.start : group.stop]
        rows = chosen.reshape(heads, groups, *chosen.shape[1:]).permute(2, 0, 1, 3)
        if some is not None:
            rows = rows.new_zeros((len(keys), *rows.shape[1:])).index_copy_(0, some, rows)
        out, lse = self._attend(rows, keys, values, call, mask)  # [R, Hkv, G, D]
        if some is not None:
            out, lse = out.index_select(0, some), lse.index_select(0, some)
        return out.transpose(0, 1).flatten(1, 2)[None], lse.transpose(0, 1).flatten(1, 2)[None]

    def _attend_chunk(self, call: AttentionCall, chunk: RowChunk, mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend among the new tokens of one row."""
        query, keys, values = (states[:, :, chunk.start : chunk.stop] for states in call[:3])
        out, lse = self._attend(query, keys, values, call, mask, causal=mask is None)
        queries = GroupedQueries.of(query, self._queries.num_kv_heads)
        return queries.group(out), queries.group_lse(lse)

    def _attend_stored(self, grouped: torch.Tensor, layer: int, call: AttentionCall) -> Iterator[PartialAttention]:
        """Attend from grouped queries `[1, Hkv, M, D]` to the segments, those of all tokens first."""
        for views, first_query, mask in self._stored.all_tokens:
            keys, values = views.by_layer[layer]
            chosen = grouped[:, :, first_query * self._queries.num_groups :] if first_query else grouped
            yield PartialAttention(*self._attend(chosen, keys, values, call, mask))
        for some in self._stored.some_tokens:
            yield self._attend_some_tokens(grouped, layer, some, call)

    def _attend_some_tokens(
        self, grouped: torch.Tensor, layer: int, some: _SomeTokens, call: AttentionCall
    ) -> PartialAttention:
        """Attend from some tokens to keys that they share."""
        chosen = self._queries.by_token(grouped).index_select(2, some.tokens.tokens)  # [1, Hkv, E, G, D]
        results = [
            self._attend(query.flatten(2, 3), *views.by_layer[layer], call, mask)
            for query, (views, mask) in zip(chosen.split_with_sizes(some.sizes, dim=2), some.calls, strict=True)
        ]
        out, lse = results[0] if len(results) == 1 else (torch.cat(each, dim=2) for each in zip(*results, strict=True))
        return PartialAttention(out, lse, some.tokens)

    def _attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        call: AttentionCall,
        mask: Any,
        causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert min(keys.shape[2], query.shape[2]) > 0, "the fused kernel crashes on empty inputs"
        assert keys.shape == values.shape, "the fused kernel would read past the shorter one"
        return self._backend.attend(query, keys, values, call, mask, causal)

    def _prepared_calls(self, seen: Sequence[tuple[KVView, SegmentMask]], device: torch.device) -> _Stored:
        """Return a call for each segment; those in which some tokens attend are in groups of limited size."""
        all_tokens, some = list[_AllTokens](), list[tuple[LayerViews, SegmentMask]]()
        for segment, mask in seen:
            views = segment.layers(mask.start, mask.stop)
            if mask.tokens is None:
                all_tokens.append(_AllTokens(views, mask.first_query, self._grouped_mask(mask)))
            else:
                some.append((views, mask))
        ends = accumulate(len(_tokens(mask)) for _, mask in some)
        found = []
        for _, group in groupby(zip(some, ends, strict=True), key=lambda each: each[1] // _MAX_TOKENS_AT_ONCE):
            chosen = [each for each, _ in group]
            sets = [_tokens(mask) for _, mask in chosen]
            found.append(
                _SomeTokens(
                    tuple((views, self._grouped_mask(mask)) for views, mask in chosen),
                    tuple(map(len, sets)),
                    TokensOfSets.of(sets, self._queries.num_tokens, device),
                )
            )
        return _Stored(tuple(all_tokens), tuple(found))

    def _grouped_mask(self, mask: SegmentMask) -> Any:
        return self._prepared_mask(None if mask.mask is None else self._queries.group_mask(mask.mask))

    def _prepared_mask(self, mask: torch.Tensor | None) -> Any:
        return None if mask is None else self._backend.prepare_mask(mask, self._spec)

    def _by_group(self, mask: torch.Tensor | None) -> torch.Tensor | None:
        return None if mask is None else mask.expand(-1, -1, self._queries.num_groups, -1)


def _tokens(mask: SegmentMask) -> Any:
    assert mask.tokens is not None, "some tokens attend"
    return mask.tokens


def _some(group: TailGroup, device: torch.device) -> torch.Tensor | None:
    """Return the indices of the tails in use, or None if all are."""
    is_all = len(group.indices) == len(group.views.by_layer[0][0])
    return None if is_all else to_device(torch.tensor(group.indices), device)
