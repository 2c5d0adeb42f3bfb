"""Backends of PyTorch's kernels that return their log-sum-exp: fused ones for CPUs and GPUs, and matrix products."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from promptcache.attention.backend import AttentionCall, AttentionSpec
from promptcache.attention.kernel_calls import KernelBackend
from promptcache.attention.transfer import to_device

_FUSED = torch._scaled_dot_product_flash_attention_for_cpu
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention
_EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention

_DTYPES = frozenset({torch.float16, torch.bfloat16})
_ALIGNMENT = 8  # on GPUs, head dimensions and rows of a bias are multiples of this number of 16-bit elements
_MAX_HEAD_DIM = 256
_OLDEST = 8, 0  # compute capability: Ampere


class Bias(NamedTuple):
    """A mask in the form of fused kernels: numbers that are added to the scores.

    Attributes:
        added: Added to the scores, `[B, 1, T, S]`; B may be 1.
        blind: Bool, the queries that attend to no key, `[B, 1, T]` or `[T]`; None if there are none.
    """

    added: torch.Tensor
    blind: torch.Tensor | None


class _FusedBackend(KernelBackend):
    """A backend whose kernels take a mask as a bias."""

    _alignment = 1  # rows of a bias begin at multiples of this number of elements

    def prepare_mask(self, mask: torch.Tensor, spec: AttentionSpec) -> Bias:
        """Return a mask as a bias."""
        *outer, num_keys = mask.shape
        width = -(-num_keys // self._alignment) * self._alignment
        added = torch.zeros((*outer, width), dtype=spec.dtype, device=spec.device)[..., :num_keys]
        added.masked_fill_(~to_device(mask, spec.device), -torch.inf)
        blind = ~mask.any(-1)
        return Bias(
            added=added if added.ndim == 4 else added[None, None],
            blind=to_device(blind, spec.device) if blind.any() else None,
        )


class CpuBackend(_FusedBackend):
    """PyTorch's fused attention on CPUs, without a soft cap."""

    name = "cpu"

    def supports(self, spec: AttentionSpec) -> bool:
        """Whether the tensors are on a CPU and scores are not capped."""
        return spec.device.type == "cpu" and spec.softcap is None

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall, mask: Any, causal: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the attention of the fused kernel."""
        assert min(key.shape[2], query.shape[2]) > 0, "the fused kernel crashes on empty inputs"
        assert key.shape == value.shape, "the fused kernel would read past the shorter one"
        added, blind = mask or (None, None)
        out, lse = _FUSED(query, key, value, 0.0, causal, attn_mask=added, scale=call.scale)
        if blind is not None:  # for a query without any key the kernel returns 0 (torch 2.13)
            lse = lse.masked_fill(blind, -torch.inf)
        return out, lse


class CudaBackend(_FusedBackend):
    """PyTorch's fused attention on NVIDIA GPUs, for numbers of 16 bits without a soft cap.

    FlashAttention splits long keys over the processors of a GPU, but takes no masks. The memory-efficient kernel
    computes attention under a mask.
    """

    name = "cuda"
    groups_heads = True
    _alignment = _ALIGNMENT

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

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall, mask: Any, causal: bool
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


class PortableBackend(KernelBackend):
    """Attention from matrix products, on any device, in any dtype, with soft-capped scores."""

    name = "portable"

    def supports(self, spec: AttentionSpec) -> bool:
        """Always True."""
        return True

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, call: AttentionCall, mask: Any, causal: bool
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
