"""The portable backend: attention from matrix products, on any device, in any dtype, with soft-capped scores."""

from __future__ import annotations

import torch

from promptcache.attention.backend import AttentionCall, AttentionSpec
from promptcache.attention.kernel_calls import KernelBackend
from promptcache.attention.transfer import to_device


class PortableBackend(KernelBackend):
    """Attention from matrix products."""

    name = "portable"

    def supports(self, spec: AttentionSpec) -> bool:
        """Always True."""
        return True

    def prepare_mask(self, mask: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
        """Return a mask on the device."""
        return to_device(mask, spec.device)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        call: AttentionCall,
        mask: torch.Tensor | None,
        causal: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the attention of matrix products."""
        groups = query.shape[1] // key.shape[1]
        batch, heads, num_queries, width = query.shape
        accumulate = torch.promote_types(query.dtype, torch.float32)
        grouped = query.reshape(batch, key.shape[1], groups * num_queries, width)
        scores = (grouped @ key.transpose(-1, -2)).to(accumulate) * call.scale
        if call.softcap is not None:
            scores = torch.tanh(scores / call.softcap) * call.softcap
        scores = scores.view(batch, heads, num_queries, key.shape[2])
        if causal:
            mask = torch.ones(num_queries, key.shape[2], dtype=torch.bool, device=query.device).tril_()
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        lse = scores.logsumexp(-1)
        weights = (scores - lse.nan_to_num(neginf=0.0)[..., None]).exp()
        out = weights.to(value.dtype).view(batch, key.shape[1], groups * num_queries, key.shape[2]) @ value
        return out.view(batch, heads, num_queries, value.shape[3]), lse
