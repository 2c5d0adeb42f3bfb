"""Attention as kernel calls: one over the own tokens, one for each segment, and a merge of their results.

A kernel computes attention over one set of keys and returns the log-sum-exp of the scores. All backends with such a
kernel share these calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, NamedTuple, TypeAlias

import torch

from promptcache.kv import LayerViews
from promptcache.runtime.attention.backend import AttentionCall, AttentionSpec
from promptcache.runtime.attention.grouped_queries import GroupedQueries
from promptcache.runtime.attention.masks import ForwardMask, SegmentMask
from promptcache.runtime.attention.merge import PartialAttention, RowsOfSets, merge

_MAX_ROWS_AT_ONCE = 512
"""Approximate number of rows of kernel calls that are merged together. More would take much memory."""

Attend: TypeAlias = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel for attention over one set of keys.

    Both functions take `query [B, Hq, T, D]`, `key` and `value` `[B, Hkv, S, D]` with T, S > 0, and `scale`. They
    return `out [B, Hq, T, D]` in the dtype of the query, and `lse [B, Hq, T]`, the natural log-sum-exp of the scores.
    It is float32, or float64 for float64 inputs, and minus infinity where a query attends to no key.

    Attributes:
        unmasked: Every query attends to every key; Hq == Hkv.
        masked: Also takes `mask`, from `prepare_mask` or None, and `causal`: query i attends to keys 0..i only, with
            T == S and no mask. Hq is a multiple of Hkv.
        groups_heads: Whether `masked` reads keys once for all heads of a group. Otherwise several tokens of one request
            are grouped before. This copies queries and results, and saves reading stored keys several times.
        prepare_mask: Converts a mask on the host, bool `[T, S]`, or `[B, 1, T, S]` if Hq == Hkv, to the form that
            `masked` takes, once for all layers.
    """

    unmasked: Attend
    masked: Attend
    prepare_mask: Callable[[torch.Tensor], Any]
    groups_heads: bool = False


class KernelBackend:
    """Base class of backends with a kernel. A subclass implements `supports` and `kernel`."""

    name: str

    def supports(self, spec: AttentionSpec) -> bool:
        """Whether the kernel can compute attention of this kind."""
        raise NotImplementedError

    def kernel(self, spec: AttentionSpec) -> Kernel:
        """Return the kernel."""
        raise NotImplementedError

    def prepare(self, mask: ForwardMask, spec: AttentionSpec) -> KernelAttention:
        """Prepare the kernel calls of one forward pass."""
        return KernelAttention(mask, spec.queries, self.kernel(spec), spec.device)


class KernelCall(NamedTuple):
    """Keys of one kernel call, and the mask of its queries; None means that all queries attend to all keys."""

    views: LayerViews
    mask: SegmentMask | None


class _AllRows(NamedTuple):
    """A kernel call in which all rows attend, from grouped query `first_query` on, with its prepared mask."""

    views: LayerViews
    first_query: int
    mask: Any


class _SomeRows(NamedTuple):
    """Kernel calls in which some batch rows attend, to be merged together.

    Attributes:
        calls: The keys of each call, with its prepared mask.
        sizes: The number of rows of each call.
        rows: The rows of all calls.
    """

    calls: tuple[tuple[LayerViews, Any], ...]
    sizes: tuple[int, ...]
    rows: RowsOfSets


class KernelAttention:
    """Attention of one forward pass by kernel calls, the same in every layer."""

    def __init__(self, mask: ForwardMask, queries: GroupedQueries, kernel: Kernel, device: torch.device) -> None:
        calls = kernel_calls(mask)
        self._unmasked = kernel.unmasked
        if queries.batch == 1 and queries.num_tokens > 1 and (kernel.groups_heads or not calls):
            queries = queries.by_head()  # nothing is copied
            self._unmasked = kernel.masked
        self._queries = queries
        self._kernel = kernel
        self._own_mask = self._prepared_mask(_of_heads(mask.own_mask, queries))
        self._all_rows = tuple(self._of_all_rows(calls))
        self._some_rows = tuple(self._of_some_rows(calls, device))

    def run(self, layer: int, call: AttentionCall) -> torch.Tensor:
        """Return the attention of one layer, `[B, T, Hq, D]`."""
        queries, (query, keys, values, scale, *_) = self._queries, call
        grouped = queries.group(query)
        if self._own_mask is not None:
            partials = [self._attend_by_row(query, keys, values, scale, mask=self._own_mask)]
        elif query.shape[0] == query.shape[2] == 1:
            partials = [PartialAttention(*self._kernel.unmasked(grouped, keys, values, scale=scale))]
        else:
            partials = self._attend_causal(query, keys, values, scale)
        partials.extend(self._attend_stored(grouped, layer, scale))
        return queries.ungroup(merge(partials, queries, call.sinks))

    def _attend_stored(self, grouped: torch.Tensor, layer: int, scale: float) -> Iterator[PartialAttention]:
        """Attend from grouped queries `[1, Hkv, M, D]` to the segments, those of all rows first."""
        for views, first_query, mask in self._all_rows:
            keys, values = views.by_layer[layer]
            chosen = grouped[:, :, first_query:] if first_query else grouped
            if mask is None:
                yield PartialAttention(*self._unmasked(chosen, keys, values, scale=scale))
            else:
                yield PartialAttention(*self._attend_masked(chosen, keys, values, scale, mask))
        for some in self._some_rows:
            yield self._attend_some_rows(grouped, layer, some, scale)

    def _attend_causal(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float
    ) -> list[PartialAttention]:
        """Attend to own tokens `[B, Hkv, n, D]`: fully to the older ones, and causally among the new ones."""
        num_queries, num_own = query.shape[2], keys.shape[2]
        if num_queries == 1:
            return [self._attend_by_row(query, keys, values, scale)]
        older = num_own - num_queries
        new = self._attend_by_row(query, keys[:, :, older:], values[:, :, older:], scale, causal=True)
        if not older:
            return [new]
        return [new, self._attend_by_row(query, keys[:, :, :older], values[:, :, :older], scale)]

    def _attend_by_row(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
        mask: Any = None,
        causal: bool = False,
    ) -> PartialAttention:
        """Attend from `[B, Hq, T, D]` to keys `[B, Hkv, S, D]`, row by row."""
        queries = self._queries
        if query.shape[2] == 1 and queries.num_groups > 1:  # heads of a group are rows over the same keys
            query = query.reshape(queries.batch, queries.num_kv_heads, queries.num_groups, -1)
        out, lse = self._attend_masked(query, keys, values, scale, mask, causal)
        heads = (queries.batch, queries.num_kv_heads * queries.num_groups, queries.num_tokens)
        return PartialAttention(queries.group(out.reshape(*heads, -1)), queries.group_lse(lse.reshape(heads)))

    def _attend_some_rows(self, grouped: torch.Tensor, layer: int, some: _SomeRows, scale: float) -> PartialAttention:
        """Attend from some rows to keys that they share."""
        chosen = self._queries.by_row(grouped).index_select(2, some.rows.rows)  # [1, Hkv, E, G, D]
        results = [
            self._attend_masked(query.flatten(2, 3), *views.by_layer[layer], scale, mask)
            for query, (views, mask) in zip(chosen.split_with_sizes(some.sizes, dim=2), some.calls, strict=True)
        ]
        out, lse = results[0] if len(results) == 1 else (torch.cat(each, dim=2) for each in zip(*results, strict=True))
        return PartialAttention(out, lse, some.rows)

    def _attend_masked(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
        mask: Any,
        causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert min(keys.shape[2], query.shape[2]) > 0, "the fused kernel crashes on empty inputs"
        assert keys.shape == values.shape, "the fused kernel would read past the shorter one"
        return self._kernel.masked(query, keys, values, scale=scale, mask=mask, causal=causal)

    def _of_all_rows(self, calls: Sequence[KernelCall]) -> Iterator[_AllRows]:
        for views, mask in calls:
            if mask is None:
                yield _AllRows(views, 0, None)
            elif mask.rows is None:
                yield _AllRows(views, mask.first_query * self._queries.token_size, self._grouped_mask(mask))

    def _of_some_rows(self, calls: Sequence[KernelCall], device: torch.device) -> Iterator[_SomeRows]:
        """Yield the calls in which some rows attend, in groups of limited size."""
        found = [
            (views, mask.rows, self._grouped_mask(mask))
            for views, mask in calls
            if mask is not None and mask.rows is not None
        ]
        ends = accumulate(len(rows) for _, rows, _ in found)
        for _, group in groupby(zip(found, ends, strict=True), key=lambda each: each[1] // _MAX_ROWS_AT_ONCE):
            chosen = [each for each, _ in group]
            yield _SomeRows(
                tuple((views, mask) for views, _, mask in chosen),
                tuple(len(rows) for _, rows, _ in chosen),
                RowsOfSets.of([rows for _, rows, _ in chosen], self._queries.batch, device),
            )

    def _grouped_mask(self, mask: SegmentMask) -> Any:
        return self._prepared_mask(None if mask.mask is None else self._queries.group_mask(mask.mask))

    def _prepared_mask(self, mask: torch.Tensor | None) -> Any:
        return None if mask is None else self._kernel.prepare_mask(mask)


def _of_heads(mask: torch.Tensor | None, queries: GroupedQueries) -> torch.Tensor | None:
    """Return a mask `[1, n]` of single tokens for the heads of a group, which are queries over the same keys."""
    return mask if mask is None or queries.num_tokens > 1 else mask.expand(queries.num_groups, -1)


def kernel_calls(mask: ForwardMask) -> tuple[KernelCall, ...]:
    """Return the kernel calls of a forward pass: one for each segment to which a query attends."""
    calls: list[KernelCall] = []
    for segment, segment_mask in zip(mask.segments, mask.masks, strict=True):
        if segment_mask is None or segment_mask.start == segment_mask.stop:
            continue
        views = segment.layers(segment_mask.start, segment_mask.stop)
        calls.append(KernelCall(views, None if segment_mask.is_whole else segment_mask))
    return tuple(calls)
