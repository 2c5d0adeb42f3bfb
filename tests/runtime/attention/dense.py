"""A toy backend: dense attention in float64, written out. It is the oracle of the other backends."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from promptcache.runtime.attention import AttentionCall, AttentionSpec, ForwardMask, SegmentMask


def dense_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    mask: torch.Tensor | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention `[B, Hq, T, D]` and log-sum-exp `[B, Hq, T]` in float64; the log-sum-exp is without sinks."""
    groups = query.shape[1] // key.shape[1]
    keys, values = (states.double().repeat_interleave(groups, 1) for states in (key, value))
    scores = query.double() @ keys.transpose(-1, -2) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is None:
        weights = scores.softmax(-1).nan_to_num()
    else:
        extra = sinks.double()[None, :, None, None].expand(*scores.shape[:3], 1)
        weights = torch.cat([scores, extra], -1).softmax(-1)[..., :-1]
    return weights @ values, scores.logsumexp(-1)


def segment_matrix(mask: SegmentMask | None, batch: int, num_queries: int, num_keys: int) -> torch.Tensor:
    """Return the mask of a segment as a matrix, bool `[B, T, S]`."""
    matrix = torch.zeros((batch, num_queries, num_keys), dtype=torch.bool)
    if mask is None:
        return matrix
    rows = list(range(batch)) if mask.rows is None else mask.rows.tolist()
    seen = torch.ones((len(rows), num_queries - mask.first_query, mask.stop - mask.start), dtype=torch.bool)
    if mask.mask is not None:
        seen &= mask.mask.cpu()
    matrix[rows, mask.first_query :, mask.start : mask.stop] = seen
    return matrix


@dataclass(frozen=True, slots=True)
class PreparedDense:
    """Dense attention over concatenated keys."""

    mask: ForwardMask
    spec: AttentionSpec
    calls: list[str]

    def run(self, layer: int, call: AttentionCall) -> torch.Tensor:
        """Concatenate keys, expand the masks, and attend."""
        self.calls.append(f"run {layer}")
        query = call.query
        batch, _, num_queries, _ = query.shape
        views = [segment.layers().by_layer[layer] for segment in self.mask.segments]
        keys, values = (
            torch.cat([*(view[index].expand(batch, -1, -1, -1) for view in views), own], dim=2)
            for index, own in enumerate((call.keys, call.values))
        )
        num_own = call.keys.shape[2]
        own = torch.ones((num_queries, num_own), dtype=torch.bool).tril(num_own - num_queries).expand(batch, -1, -1)
        if self.mask.own_mask is not None:
            own = self.mask.own_mask.cpu().reshape(-1, num_queries, num_own).expand(batch, -1, -1)
        masks = zip(self.mask.segments, self.mask.masks, strict=True)
        matrices = [segment_matrix(mask, batch, num_queries, segment.num_tokens) for segment, mask in masks]
        mask = torch.cat([*matrices, own], dim=2)[:, None].to(query.device)
        out, _ = dense_attention(
            query, keys, values, scale=call.scale, mask=mask, softcap=self.spec.softcap, sinks=call.sinks
        )
        return out.transpose(1, 2).to(query.dtype)


class DenseBackend:
    """The toy backend; `calls` lists its calls in order."""

    name = "dense"

    def __init__(self) -> None:
        self.calls: list[str] = []

    def supports(self, spec: AttentionSpec) -> bool:
        """Always True."""
        return True

    def prepare(self, mask: ForwardMask, spec: AttentionSpec) -> PreparedDense:
        """Keep the masks."""
        self.calls.append("prepare")
        return PreparedDense(mask, spec, self.calls)
