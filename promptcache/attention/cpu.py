"""The CPU backend: PyTorch's fused attention kernel for CPUs, which returns its log-sum-exp."""

from __future__ import annotations

import torch

from promptcache.attention.backend import AttentionCall, AttentionSpec
from promptcache.attention.bias import Bias
from promptcache.attention.kernel_calls import KernelBackend

_FUSED = torch._scaled_dot_product_flash_attention_for_cpu


class CpuBackend(KernelBackend):
    """PyTorch's fused attention on CPUs, without a soft cap."""

    name = "cpu"

    def supports(self, spec: AttentionSpec) -> bool:
        """Whether the tensors are on a CPU and scores are not capped."""
        return spec.device.type == "cpu" and spec.softcap is None

    def prepare_mask(self, mask: torch.Tensor, spec: AttentionSpec) -> Bias:
        """Return a mask as a bias."""
        return Bias.of(mask, spec)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        call: AttentionCall,
        mask: Bias | None,
        causal: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the attention of the fused kernel."""
        added, blind = mask or (None, None)
        out, lse = _FUSED(query, key, value, 0.0, causal, attn_mask=added, scale=call.scale)
        if blind is not None:  # for a query without any key the kernel returns 0 (torch 2.13)
            lse = lse.masked_fill(blind, -torch.inf)
        return out, lse
