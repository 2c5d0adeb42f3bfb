"""The CUDA backend: PyTorch's fused attention kernels for NVIDIA GPUs, which return their log-sum-exp.

FlashAttention splits long keys over the processors of a GPU, but takes no masks. The memory-efficient kernel computes
attention under a mask.
"""

from __future__ import annotations

import torch

from promptcache.attention.backend import AttentionCall, AttentionSpec
from promptcache.attention.bias import Bias
from promptcache.attention.kernel_calls import KernelBackend

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention
_EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention

_DTYPES = frozenset({torch.float16, torch.bfloat16})
_ALIGNMENT = 8  # head dimensions and rows of a bias are multiples of this number of 16-bit elements
_MAX_HEAD_DIM = 256
_OLDEST = 8, 0  # compute capability: Ampere


class CudaBackend(KernelBackend):
    """PyTorch's fused attention on NVIDIA GPUs, for numbers of 16 bits without a soft cap."""

    name = "cuda"
    groups_heads = True

    def supports(self, spec: AttentionSpec) -> bool:
        """Whether the kernels exist for these tensors and scores are not capped.

        Tensors on the meta device stand for CUDA where launches are counted; nothing is computed there.
        """
        return (
            spec.dtype in _DTYPES
            and spec.softcap is None
            and spec.head_dim <= _MAX_HEAD_DIM
            and spec.head_dim % _ALIGNMENT == 0
            and (spec.device.type == "meta" or (spec.device.type == "cuda" and _has_kernels(spec.device)))
        )

    def prepare_mask(self, mask: torch.Tensor, spec: AttentionSpec) -> Bias:
        """Return a mask as a bias."""
        return Bias.of(mask, spec, _ALIGNMENT)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        call: AttentionCall,
        mask: Bias | None,
        causal: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the attention of one of the fused kernels."""
        if mask is None:
            out, lse, *_ = _FLASH(query, key, value, 0.0, causal, scale=call.scale)
            return out, lse
        batch, kv_heads = key.shape[:2]
        groups = query.shape[1] // kv_heads
        if groups > 1:  # the kernel wants as many heads of keys: the heads of a group become rows of the batch
            by_group = query.reshape(batch, kv_heads, groups, *query.shape[2:])
            query = by_group.permute(2, 0, 1, 3, 4).flatten(0, 1)  # [G * B, Hkv, T, D]
            key, value = (states.expand(groups, *states.shape).flatten(0, 1) for states in (key, value))
        bias = mask.added.expand(*query.shape[:3], -1)
        out, lse, *_ = _EFFICIENT(query, key, value, bias, True, 0.0, False, scale=call.scale)
        lse = lse[:, :, : query.shape[2]]  # the kernel pads it
        if groups > 1:
            out, lse = (each.reshape(groups, batch, *each.shape[1:]).movedim(0, 2).flatten(1, 2) for each in (out, lse))
        if mask.blind is not None:
            out, lse = out.masked_fill(mask.blind[..., None], 0.0), lse.masked_fill(mask.blind, -torch.inf)
        return out, lse


def _has_kernels(device: torch.device) -> bool:
    return (
        torch.version.hip is None
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(device) >= _OLDEST
    )
