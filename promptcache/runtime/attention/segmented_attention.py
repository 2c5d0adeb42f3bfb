"""Attention of one request: chooses the backend of each forward pass, and reuses its plan in all layers.

Backends are registered here. The first one that supports a forward pass computes it.
"""

from __future__ import annotations

import torch

from promptcache.runtime.attention.backend import AttentionBackend, AttentionPlan, AttentionSpec
from promptcache.runtime.attention.cpu import CpuBackend
from promptcache.runtime.attention.grouped_queries import GroupedQueries
from promptcache.runtime.attention.kernel_plan import Kernel, KernelBackend
from promptcache.runtime.attention.masks import Positions
from promptcache.runtime.attention.portable import PortableBackend

_backends: tuple[AttentionBackend, ...] = (CpuBackend(), PortableBackend())


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


def choose_kernel(spec: AttentionSpec) -> Kernel:
    """Return the kernel of the first registered backend that has one and supports `spec`."""
    return next(each.kernel(spec) for each in _backends if isinstance(each, KernelBackend) and each.supports(spec))


class SegmentedAttention:
    """Attention over the segments and own tokens of one request, or of a batch, in all layers.

    Not thread-safe, like the cache that it belongs to.
    """

    def __init__(self, positions: Positions) -> None:
        self.positions = positions
        self._plans: dict[int | None, tuple[tuple[object, ...], AttentionPlan]] = {}  # the latest plan of each window

    def run(
        self,
        layer: int,
        query: torch.Tensor,
        own_keys: torch.Tensor,
        own_values: torch.Tensor,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the attention of one layer, `[B, T, Hq, D]`.

        Args:
            layer, query, own_keys, own_values, scale, sinks: As in `AttentionPlan.run`.
            window: A query attends to keys less than this many positions before it; None means all keys.
            softcap: As in `AttentionSpec`.
        """
        forward = (own_keys.shape[2], query.shape, own_keys.shape[1], softcap)
        known = self._plans.get(window)
        if known is None or known[0] != forward:
            known = self._plans[window] = (forward, self._plan(query, own_keys, window, softcap))
        return known[1].run(layer, query, own_keys, own_values, scale=scale, sinks=sinks)

    def _plan(
        self, query: torch.Tensor, own_keys: torch.Tensor, window: int | None, softcap: float | None
    ) -> AttentionPlan:
        queries = GroupedQueries.of(query, own_keys.shape[1])
        spec = AttentionSpec(queries=queries, dtype=query.dtype, device=query.device, softcap=softcap)
        mask = self.positions.forward_mask(own_keys.shape[2], queries.num_tokens, window)
        return choose_backend(spec).plan(mask, spec)
