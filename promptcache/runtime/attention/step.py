"""Attention of one step: a forward pass `[1, T]` whose T tokens belong to any number of requests.

Each token is a row of its own, so the kernel calls over stored KV and the merge are those of a batch. Own KV is
attended to in kernel calls of two kinds: one for all requests with a single new token whose tails share a slab, and one
for each request with several.
"""

from __future__ import annotations

from typing import Any

import torch

from promptcache.runtime.attention.backend import AttentionCall, AttentionSpec, PreparedAttention
from promptcache.runtime.attention.grouped_queries import GroupedQueries
from promptcache.runtime.attention.kernel_calls import Kernel, KernelAttention, KernelBackend
from promptcache.runtime.attention.merge import PartialAttention, merge
from promptcache.runtime.attention.segmented_attention import choose_step_backend
from promptcache.runtime.attention.step_tokens import RowChunk, StepTokens, TailGroup
from promptcache.runtime.attention.transfer import to_device


class StepKernelAttention(KernelAttention):
    """Attention of one step by kernel calls, the same in every layer with one window."""

    def __init__(self, tokens: StepTokens, window: int | None, queries: GroupedQueries, kernel: Kernel) -> None:
        """Prepare a step; `queries` has T rows of one token each."""
        mask = tokens.mask(window)
        super().__init__(mask.stored, queries, kernel, tokens.device)
        self._chunks = tuple(zip(tokens.chunks, map(self._prepared_mask, mask.chunks), strict=True))
        self._tails = tuple(
            (group, self._prepared_mask(self._by_group(each)), self._some(group, tokens.device))
            for group, each in zip(tokens.groups, mask.tails, strict=True)
        )

    def run(self, layer: int, call: AttentionCall) -> torch.Tensor:
        """Return the attention of one layer, `[1, T, Hq, D]`. Tails hold the keys and values of the call already."""
        queries = self._queries
        own = [
            *(self._attend_tails(call, layer, group, mask, some) for group, mask, some in self._tails),
            *(self._attend_chunk(call, chunk, mask) for chunk, mask in self._chunks),
        ]
        out, lse = own[0] if len(own) == 1 else (torch.cat(parts, dim=2) for parts in zip(*own, strict=True))
        stored = self._attend_stored(queries.group(call.query.transpose(0, 2)), layer, call.scale)
        partials = [PartialAttention(out, lse), *stored]
        return queries.ungroup(merge(partials, queries, call.sinks)).transpose(0, 1)

    def _attend_tails(
        self, call: AttentionCall, layer: int, group: TailGroup, mask: Any, some: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend from one token of each request to its tail; heads of a group are queries over the same keys."""
        keys, values = group.views.by_layer[layer]  # [R, Hkv, S, D]
        heads, groups = self._queries.num_kv_heads, self._queries.num_groups
        chosen = call.query[0, :, group.start : group.stop]
        rows = chosen.reshape(heads, groups, *chosen.shape[1:]).permute(2, 0, 1, 3)
        if some is not None:
            rows = rows.new_zeros((len(keys), *rows.shape[1:])).index_copy_(0, some, rows)
        out, lse = self._attend_masked(rows, keys, values, call.scale, mask)  # [R, Hkv, G, D]
        if some is not None:
            out, lse = out.index_select(0, some), lse.index_select(0, some)
        return out.transpose(0, 1).flatten(1, 2)[None], lse.transpose(0, 1).flatten(1, 2)[None]

    def _attend_chunk(self, call: AttentionCall, chunk: RowChunk, mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Attend among the new tokens of one request."""
        query, keys, values = (states[:, :, chunk.start : chunk.stop] for states in call[:3])
        queries = GroupedQueries.of(query, keys.shape[1])
        out, lse = self._attend_masked(query, keys, values, call.scale, mask, causal=mask is None)
        return queries.group(out), queries.group_lse(lse)

    def _by_group(self, mask: torch.Tensor | None) -> torch.Tensor | None:
        return None if mask is None else mask.expand(-1, -1, self._queries.num_groups, -1)

    @staticmethod
    def _some(group: TailGroup, device: torch.device) -> torch.Tensor | None:
        """Return the indices of the tails in use, or None if all are."""
        is_all = len(group.indices) == len(group.views.by_layer[0][0])
        return None if is_all else to_device(torch.tensor(group.indices), device)


class StepAttention:
    """Attention over the tokens of one step, in all layers. It is prepared once for each window."""

    def __init__(self, tokens: StepTokens) -> None:
        self.tokens = tokens
        self._prepared: dict[int | None, PreparedAttention] = {}

    def run(self, layer: int, call: AttentionCall) -> torch.Tensor:
        """Return the attention of one layer, `[1, T, Hq, D]`. All layers have the same soft cap."""
        prepared = self._prepared.get(call.window)
        if prepared is None:
            # T rows of one token each
            spec = AttentionSpec.of(call.query.transpose(0, 2), call.keys.shape[1], call.softcap)
            prepared = self._prepared[call.window] = _prepare(self.tokens, call.window, spec)
        return prepared.run(layer, call)


def _prepare(tokens: StepTokens, window: int | None, spec: AttentionSpec) -> PreparedAttention:
    backend = choose_step_backend(spec)
    if isinstance(backend, KernelBackend):
        return StepKernelAttention(tokens, window, spec.queries, backend.kernel(spec))
    return backend.prepare_step(tokens, window, spec)
