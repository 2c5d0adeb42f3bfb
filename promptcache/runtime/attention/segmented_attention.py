"""Attention of one request: chooses the backend of each forward pass, and prepares it once for all layers.

Backends are registered here. The first one that supports a forward pass computes it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

import torch

from promptcache.kv import KVShape, Slab
from promptcache.runtime.attention.backend import (
    AttentionBackend,
    AttentionCall,
    AttentionSpec,
    PreparedAttention,
    StepBackend,
)
from promptcache.runtime.attention.cpu import CpuBackend
from promptcache.runtime.attention.cuda import CudaBackend
from promptcache.runtime.attention.kernel_calls import KernelBackend
from promptcache.runtime.attention.masks import Positions
from promptcache.runtime.attention.portable import PortableBackend
from promptcache.runtime.attention.triton_backend import TokenStore, TritonBackend, append

_backends: tuple[AttentionBackend, ...] = (CpuBackend(), TritonBackend(), CudaBackend(), PortableBackend())


def register_backend(backend: AttentionBackend) -> None:
    """Register a backend before all others; it replaces a backend of the same name."""
    unregister_backend(backend.name)
    global _backends
    _backends = (backend, *_backends)


def unregister_backend(name: str) -> None:
    """Remove the backend `name` if it is registered."""
    global _backends
    _backends = tuple(each for each in _backends if each.name != name)


def choose_backend(spec: AttentionSpec) -> AttentionBackend:
    """Return the first registered backend that supports `spec`. The portable backend supports every one."""
    return next(each for each in _backends if each.supports(spec))


def choose_step_backend(spec: AttentionSpec) -> KernelBackend | StepBackend:
    """Return the first registered backend that supports `spec` and computes steps."""
    return next(each for each in _backends if isinstance(each, KernelBackend | StepBackend) and each.supports(spec))


def token_store(shape: KVShape, places: Iterable[tuple[Slab, int]]) -> TokenStore | None:
    """Return a kernel's store for the tokens of a step; None if their memory is written by indices.

    Args:
        shape: Shape of their KV.
        places: For each token the KV of its row, `[L, Hkv, C, D]`, and its index there. Not read without a kernel.
    """
    return TokenStore(places, shape.device) if has_kernels(shape.dtype, shape.head_dim, shape.device) else None


Append: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Copies keys and values `[B, Hkv, T, D]`, the last two arguments, to views of memory, the first two."""


def append_function(dtype: torch.dtype, head_dim: int, device: torch.device) -> Append:
    """Return the function that writes new KV of one layer where it follows older KV: one kernel, or two copies."""
    return append if has_kernels(dtype, head_dim, device) else _copy


def _copy(to_keys: torch.Tensor, to_values: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    to_keys.copy_(keys)
    to_values.copy_(values)


def has_kernels(dtype: torch.dtype, head_dim: int, device: torch.device) -> bool:
    """Whether Triton kernels take KV of this kind, and run on its device. The first call compiles them."""
    return any(isinstance(each, TritonBackend) and each.takes(dtype, head_dim, device) for each in _backends)


def uses_kernels(spec: AttentionSpec) -> bool:
    """Whether Triton kernels compute steps of this kind."""
    return isinstance(choose_step_backend(spec), TritonBackend)


class SegmentedAttention:
    """Attention over the segments and own tokens of one request in all layers.

    Not thread-safe, like the cache that it belongs to.
    """

    def __init__(self, positions: Positions) -> None:
        self.positions = positions
        self._prepared: dict[int | None, _Prepared] = {}  # the latest of each window

    def run(self, layer: int, call: AttentionCall) -> torch.Tensor:
        """Return the attention of one layer, `[B, T, Hq, D]`."""
        known = self._prepared.get(call.window)
        forward = (call.query.shape, call.keys.shape[1], call.softcap)
        if known is None or known.forward != forward or call.keys.shape[2] not in known.num_own:
            known = self._prepared[call.window] = self._prepare(call)
        return known.attention.run(layer, call)

    def _prepare(self, call: AttentionCall) -> _Prepared:
        _, num_heads, num_own, _ = call.keys.shape
        spec = AttentionSpec.of(call.query, num_heads, call.softcap)
        num_queries = spec.queries.num_tokens
        mask = self.positions.forward_mask(num_own, num_queries, call.window)
        # Own tokens are in position order: later tokens, fed one by one, attend to all cached tokens too.
        lasts = call.window is None and num_queries == 1 and mask.is_whole
        return _Prepared(
            forward=(call.query.shape, num_heads, call.softcap),
            num_own=range(num_own, sys.maxsize if lasts else num_own + 1),
            attention=choose_backend(spec).prepare(mask, spec),
        )


class _Prepared(NamedTuple):
    """Prepared attention, and the forward passes that it serves: their shapes, and their numbers of own tokens."""

    forward: tuple[object, ...]
    num_own: range
    attention: PreparedAttention
