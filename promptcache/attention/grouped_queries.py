"""Grouped queries: query heads and tokens that share keys, as one long query."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedQueries:
    """The grouping of queries `[1, Hq, T, D]` over `Hkv` key heads into `[1, Hkv, M, D]`.

    M = T * G, in this order, so the last tokens are the last grouped queries. Keys are read once for all queries and
    never repeated.

    Attributes:
        num_tokens: T.
        num_kv_heads: Hkv.
        num_groups: G, the number of query heads for each key head.
    """

    num_tokens: int
    num_kv_heads: int
    num_groups: int

    @property
    def size(self) -> int:
        """M, the number of grouped queries for each key head."""
        return self.num_tokens * self.num_groups

    @staticmethod
    def of(query: torch.Tensor, num_kv_heads: int) -> GroupedQueries:
        """Return the grouping of `query [1, Hq, T, D]` over `num_kv_heads` key heads."""
        _, heads, tokens, _ = query.shape
        return GroupedQueries(num_tokens=tokens, num_kv_heads=num_kv_heads, num_groups=heads // num_kv_heads)

    def by_head(self) -> GroupedQueries:
        """Return the grouping of the same queries with a group for each query head."""
        heads = self.num_kv_heads * self.num_groups
        return GroupedQueries(num_tokens=self.num_tokens, num_kv_heads=heads, num_groups=1)

    def group(self, states: torch.Tensor) -> torch.Tensor:
        """Return `[1, Hq, T, D]` as `[1, Hkv, M, D]`; a view for a single token, and for groups of one head."""
        if self.num_tokens == 1 or self.num_groups == 1:
            return states.reshape(1, self.num_kv_heads, self.size, -1)
        split = states.reshape(self.num_kv_heads, self.num_groups, self.num_tokens, -1)
        return split.transpose(1, 2).reshape(1, self.num_kv_heads, self.size, -1)

    def group_lse(self, lse: torch.Tensor) -> torch.Tensor:
        """Return `[1, Hq, T]` as `[1, Hkv, M]`."""
        return self.group(lse[..., None])[..., 0]

    def ungroup(self, states: torch.Tensor) -> torch.Tensor:
        """Return `[1, Hkv, M, D]` as `[1, T, Hq, D]`."""
        heads = self.num_kv_heads * self.num_groups
        if self.num_tokens == 1:
            return states.reshape(1, 1, heads, -1)
        split = states.reshape(self.num_kv_heads, self.num_tokens, self.num_groups, -1)
        return split.transpose(0, 1).reshape(1, self.num_tokens, heads, -1)

    def group_mask(self, mask: torch.Tensor) -> torch.Tensor:
        """Return a mask `[T', S]` of tokens as that of their grouped queries, `[M', S]`."""
        return mask[:, None].expand(-1, self.num_groups, -1).flatten(0, 1)

    def group_sinks(self, sinks: torch.Tensor) -> torch.Tensor:
        """Return `[Hq]` as `[1, Hkv, M]`."""
        return sinks.view(self.num_kv_heads, self.num_groups).repeat(1, self.num_tokens)[None]

    def by_token(self, states: torch.Tensor) -> torch.Tensor:
        """Return `[1, Hkv, M, D]` as `[1, Hkv, T, G, D]`, a view."""
        return states.view(1, self.num_kv_heads, self.num_tokens, self.num_groups, -1)
