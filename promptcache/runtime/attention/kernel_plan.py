"""Attention as kernel calls: one over the own tokens, one or less for each segment, and a merge of their results.

A kernel computes attention over one set of keys and returns the log-sum-exp of the scores. All backends with such a
kernel share this plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import NamedTuple, TypeAlias

import torch

from promptcache.kv import LayerViews, Slab
from promptcache.runtime.attention.backend import AttentionSpec
from promptcache.runtime.attention.grouped_queries import GroupedQueries
from promptcache.runtime.attention.masks import ForwardMask, SegmentMask
from promptcache.runtime.attention.merge import PartialAttention, RowsOfSets, merge

_MAX_ROWS_AT_ONCE = 512
"""About as many rows of kernel calls are merged together. More would take much memory."""

Attend: TypeAlias = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A kernel for attention over one set of keys.

    Both functions take `query [B, Hq, T, D]`, `key` and `value` `[B, Hkv, S, D]` with T, S > 0, and `scale`. They
    return `out [B, Hq, T, D]` in the dtype of the query, and `lse [B, Hq, T]`, the natural log-sum-exp of the scores.
    It is float32, or float64 for float64 inputs, and minus infinity where a query attends to no key.

    Attributes:
        unmasked: Every query attends to every key; Hq == Hkv.
        masked: Also takes `mask`, bool `[T, S]` or `[B, 1, T, S]` or None, and `causal`: query i attends to keys 0..i
            only, with T == S and no mask. Hq is a multiple of Hkv.
    """

    unmasked: Attend
    masked: Attend


class KernelBackend:
    """Base class of backends with a kernel. A subclass implements `supports` and `kernel`."""

    name: str

    def supports(self, spec: AttentionSpec) -> bool:
        """Whether the kernel can compute attention of this kind."""
        raise NotImplementedError

    def kernel(self, spec: AttentionSpec) -> Kernel:
        """Return the kernel."""
        raise NotImplementedError

    def plan(self, mask: ForwardMask, spec: AttentionSpec) -> KernelPlan:
        """Return the kernel calls of one forward pass."""
        return KernelPlan(mask, spec.queries, self.kernel(spec), spec.device)


class KernelCall(NamedTuple):
    """Keys of one kernel call, and the mask of its queries; None means that all queries attend to all keys."""

    views: LayerViews
    mask: SegmentMask | None


class _SomeRows(NamedTuple):
    """Kernel calls in which some batch rows attend, to be merged together.

    Attributes:
        calls: The keys of each, with the mask for its queries.
        sizes: The number of rows of each.
        rows: The rows of all.
    """

    calls: tuple[tuple[LayerViews, torch.Tensor | None], ...]
    sizes: tuple[int, ...]
    rows: RowsOfSets


class KernelPlan:
    """The kernel calls of one forward pass, the same in every layer."""

    def __init__(self, mask: ForwardMask, queries: GroupedQueries, kernel: Kernel, device: torch.device) -> None:
        self._queries = queries
        self._kernel = kernel
        self._own_mask = mask.own_mask
        calls = kernel_calls(mask)
        self._calls = tuple(call for call in calls if call.mask is None or call.mask.rows is None)
        self._some_rows = tuple(_some_rows(calls, queries, device))

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
        """Return the attention of one layer, `[B, T, Hq, D]`. The arguments are those of `AttentionPlan.run`."""
        queries = self._queries
        grouped = queries.group(query)
        if self._own_mask is not None:
            partials = [self._attend_by_row(query, own_keys, own_values, scale, mask=self._own_mask)]
        elif query.shape[0] == query.shape[2] == 1:
            partials = [PartialAttention(*self._kernel.unmasked(grouped, own_keys, own_values, scale=scale))]
        else:
            partials = self._attend_causal(query, own_keys, own_values, scale)
        partials.extend(self._attend_stored(grouped, layer, scale))
        return queries.ungroup(merge(partials, queries, sinks))

    def _attend_stored(self, grouped: torch.Tensor, layer: int, scale: float) -> Iterator[PartialAttention]:
        """Attend from grouped queries `[1, Hkv, M, D]` to the segments, those of all rows first."""
        for views, mask in self._calls:
            keys, values = views.by_layer[layer]
            if mask is None:
                num_sets = keys.shape[0]
                sets = grouped if num_sets == 1 else grouped.expand(num_sets, -1, -1, -1)
                yield PartialAttention(*self._kernel.unmasked(sets, keys, values, scale=scale))
            else:
                yield self._attend_segment(grouped, keys, values, mask, scale)
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
        mask: torch.Tensor | None = None,
        causal: bool = False,
    ) -> PartialAttention:
        """Attend from `[B, Hq, T, D]` to keys `[B, Hkv, S, D]`, row by row."""
        queries = self._queries
        if query.shape[2] == 1 and queries.num_groups > 1:  # heads of a group are rows over the same keys
            query = query.reshape(queries.batch, queries.num_kv_heads, queries.num_groups, -1)
            if mask is not None:
                mask = mask.expand(queries.num_groups, -1)
        out, lse = self._attend_masked(query, keys, values, scale, mask, causal)
        heads = (queries.batch, queries.num_kv_heads * queries.num_groups, queries.num_tokens)
        return PartialAttention(queries.group(out.reshape(*heads, -1)), queries.group_lse(lse.reshape(heads)))

    def _attend_segment(
        self, grouped: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: SegmentMask, scale: float
    ) -> PartialAttention:
        """Attend from grouped queries `[1, Hkv, M, D]` to keys `[1, Hkv, S, D]` that all of them share."""
        queries = self._queries
        if mask.first_query:
            grouped = grouped[:, :, mask.first_query * queries.num_groups :]
        by_key = None if mask.mask is None else queries.group_mask(mask.mask)
        return PartialAttention(*self._attend_masked(grouped, keys, values, scale, by_key))

    def _attend_some_rows(self, grouped: torch.Tensor, layer: int, some: _SomeRows, scale: float) -> PartialAttention:
        """Attend from some rows to keys that they share."""
        chosen = self._queries.by_row(grouped).index_select(2, some.rows.rows)  # [1, Hkv, E, T * G, D]
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
        mask: torch.Tensor | None,
        causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert min(keys.shape[2], query.shape[2]) > 0, "the fused kernel crashes on empty inputs"
        assert keys.shape == values.shape, "the fused kernel would read past the shorter one"
        return self._kernel.masked(query, keys, values, scale=scale, mask=mask, causal=causal)


def _some_rows(calls: Sequence[KernelCall], queries: GroupedQueries, device: torch.device) -> Iterator[_SomeRows]:
    """Yield the calls in which some rows attend, in groups of limited size."""
    found = [
        (call.views, call.mask.rows, None if call.mask.mask is None else queries.group_mask(call.mask.mask))
        for call in calls
        if call.mask is not None and call.mask.rows is not None
    ]
    ends = accumulate(len(rows) for _, rows, _ in found)
    for _, group in groupby(zip(found, ends, strict=True), key=lambda each: each[1] // _MAX_ROWS_AT_ONCE):
        chosen = [each for each, _ in group]
        yield _SomeRows(
            tuple((views, by_key) for views, _, by_key in chosen),
            tuple(len(rows) for _, rows, _ in chosen),
            RowsOfSets.of([rows for _, rows, _ in chosen], queries.batch, device),
        )


def kernel_calls(mask: ForwardMask) -> tuple[KernelCall, ...]:
    """Return the kernel calls of a forward pass over its segments.

    Segments of one length at equal distances in one slab are one strided tensor and share a call; so do any two
    segments of one length. Segments to which no query attends need no call.
    """
    calls: list[KernelCall] = []
    alike: dict[tuple[Slab, int], list[int]] = {}
    for segment, segment_mask in zip(mask.segments, mask.masks, strict=True):
        if segment_mask is None or segment_mask.start == segment_mask.stop:
            continue
        if segment_mask.is_whole:
            length = segment_mask.stop - segment_mask.start
            alike.setdefault((segment.slab, length), []).append(segment.start + segment_mask.start)
        else:
            calls.append(KernelCall(segment.layers(segment_mask.start, segment_mask.stop), segment_mask))
    for (slab, length), starts in alike.items():
        for first, count, step in _progressions(sorted(starts)):
            calls.append(KernelCall(slab.layers(first, first + length, count, step), None))
    return tuple(calls)


def _progressions(starts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Split increasing numbers into sequences with equal steps; yield first number, count and step of each."""
    begin = 0
    while begin < len(starts):
        stop = min(begin + 2, len(starts))
        step = starts[stop - 1] - starts[begin]
        while stop < len(starts) and starts[stop] - starts[stop - 1] == step:
            stop += 1
        yield starts[begin], stop - begin, step
        begin = stop
