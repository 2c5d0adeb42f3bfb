"""Attention of a forward pass: chooses the backend, and prepares it once for all layers with the same window.

Backends are registered here. The first one that supports a pass computes it.
"""

from __future__ import annotations

import torch

from promptcache.attention.backend import AttentionBackend, AttentionCall, AttentionSpec, Kernels, PreparedAttention
from promptcache.attention.pass_tokens import PassTokens
from promptcache.attention.torch_backends import CpuBackend, CudaBackend, PortableBackend
from promptcache.attention.triton_backend import TritonBackend
from promptcache.kv import KVShape

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


def choose_backend(spec: AttentionSpec, kernels: Kernels | None = None) -> AttentionBackend:
    """Return the first registered backend that supports `spec`. The portable backend supports every one.

    Args:
        kernels: With `Kernels.TORCH`, the Triton kernels are left out.
    """
    return next(
        each
        for each in _backends
        if not (kernels is Kernels.TORCH and isinstance(each, TritonBackend)) and each.supports(spec)
    )


def has_kernels(shape: KVShape, kernels: Kernels | None = None) -> bool:
    """Whether Triton kernels take KV of this shape, and run on its device, also to write it with a `TokenStore`.

    The first call compiles them.

    Args:
        kernels: With `Kernels.TORCH`, they are left out.
    """
    return kernels is not Kernels.TORCH and any(
        isinstance(each, TritonBackend) and each.takes(shape.dtype, shape.head_dim, shape.device) for each in _backends
    )


def uses_kernels(spec: AttentionSpec) -> bool:
    """Whether Triton kernels compute passes of this kind."""
    return isinstance(choose_backend(spec), TritonBackend)


class PassAttention:
    """Attention over the tokens of one pass, in all layers. It is prepared once for each window."""

    def __init__(self, tokens: PassTokens, kernels: Kernels | None = None) -> None:
        self.tokens, self._kernels = tokens, kernels
        self._prepared: dict[int | None, PreparedAttention] = {}

    def run(self, layer: int, call: AttentionCall) -> torch.Tensor:
        """Return the attention of one layer, `[1, T, Hq, D]`. All layers have the same soft cap."""
        prepared = self._prepared.get(call.window)
        if prepared is None:
            spec = AttentionSpec.of(call)
            backend = choose_backend(spec, self._kernels)
            prepared = self._prepared[call.window] = backend.prepare(self.tokens, call.window, spec)
        return prepared.run(layer, call)
