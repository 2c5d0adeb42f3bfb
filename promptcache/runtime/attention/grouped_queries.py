"""Grouped queries: query heads, tokens and batch rows that share keys, as one long query."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedQueries:
    """The grouping of queries `[B, Hq, T, D]` over `Hkv` key heads into `[1, Hkv, M, D]`.

    M = T * B * G, in this order, so the last tokens of all batch rows are the last grouped queries. Keys are read once
    for all queries and never repeated.

    Attributes:
        batch: B.
        num_tokens: T.
        num_kv_heads: Hkv.
        num_groups: G, the number of query heads for each key head.
        token_size: B * G, the number of grouped queries of one token of all batch rows.
        size: M, the number of grouped queries for each key head.
    """

    batch: int
    num_tokens: int
    num_kv_heads: int
    num_groups: int
    token_size: int = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_size", self.batch * self.num_groups)
        object.__setattr__(self, "size", self.num_tokens * self.token_size)

    @staticmethod
    def of(query: torch.Tensor, num_kv_heads: int) -> GroupedQueries:
        """Return the grouping of `query [B, Hq, T, D]` over `num_kv_heads` key heads."""
        batch, heads, tokens, _ = query.shape
        return GroupedQueries(
            batch=batch, num_tokens=tokens, num_kv_heads=num_kv_heads, num_groups=heads // num_kv_heads
        )

    def by_head(self) -> GroupedQueries:
        """Return the grouping of the same queries with a group for each query head."""
        return GroupedQueries(
            batch=self.batch,
            num_tokens=self.num_tokens,
            num_kv_heads=self.num_kv_heads * self.num_groups,
            num_groups=1,
        )

    def group(self, states: torch.Tensor) -> torch.Tensor:
        """Return `[B, Hq, T, D]` as `[1, Hkv, M, D]`; a view for a single token of one request."""
        if self.batch == self.num_tokens == 1:
            return states.reshape(1, self.num_kv_heads, self.num_groups, -1)
        split = states.reshape(self.batch, self.num_kv_heads, self.num_groups, self.num_tokens, -1)
        return split.permute(1, 3, 0, 2, 4).reshape(1, self.num_kv_heads, self.size, -1)

    def group_lse(self, lse: torch.Tensor) -> torch.Tensor:
        """Return `[B, Hq, T]` as `[1, Hkv, M]`."""
        return self.group(lse[..., None])[..., 0]

    def ungroup(self, states: torch.Tensor) -> torch.Tensor:
        """Return `[1, Hkv, M, D]` as `[B, T, Hq, D]`."""
        heads = self.num_kv_heads * self.num_groups
        if self.batch == self.num_tokens == 1:
            return states.reshape(1, 1, heads, -1)
        split = states.reshape(self.num_kv_heads, self.num_tokens, self.batch, self.num_groups, -1)
        return split.permute(2, 1, 0, 3, 4).reshape(self.batch, self.num_tokens, heads, -1)

    def group_mask(self, mask: torch.Tensor) -> torch.Tensor:
        """Return `[T', S]` (all rows alike) or `[R, 1, S]` (single tokens) as `[M', S]`, for the last M' queries."""
        if mask.ndim == 3:
            return mask.expand(-1, self.num_groups, -1).flatten(0, 1)
        return mask[:, None].expand(-1, self.token_size, -1).flatten(0, 1)

    def group_sinks(self, sinks: torch.Tensor) -> torch.Tensor:
        """Return `[Hq]` as `[1, Hkv, M]`."""
        return sinks.view(self.num_kv_heads, self.num_groups).repeat(1, self.batch * self.num_tokens)[None]

    def by_row(self, states: torch.Tensor) -> torch.Tensor:
        """Return `[1, Hkv, M, D]` of single tokens as `[1, Hkv, B, G, D]`, a view."""
        assert self.num_tokens == 1, "kernel calls for some rows are of single tokens"
        return states.view(1, self.num_kv_heads, self.batch, self.num_groups, -1)
