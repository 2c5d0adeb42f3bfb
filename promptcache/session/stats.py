"""The figures of an engine."""

from __future__ import annotations

from dataclasses import dataclass

from promptcache.diagnostics import Short
from promptcache.encode import Promotions


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EngineStats(Short):
    """Figures of an engine.

    Attributes:
        memory_bytes: KV that is kept in memory now: modules, history and joined copies.
        budget_bytes: Limit of this KV. What running requests use is not limited by it.
        promotions: Combinations of modules that were promoted.
        attention: The kernels of attention: "torch" for PyTorch's; on a GPU also "triton", or "graphs" for Triton's in
            CUDA graphs.
    """

    memory_bytes: int
    budget_bytes: int
    promotions: Promotions
    attention: str
