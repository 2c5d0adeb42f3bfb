"""Figures of what an engine does in idle time."""

from __future__ import annotations

from dataclasses import dataclass, field

from promptcache.diagnostics import Short
from promptcache.runtime.promoter import AutoPromotions


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WatchedFidelity(Short):
    """How far recent requests were from plain prefill.

    Attributes:
        num_compared: Requests that were compared so far.
        divergence: Mean KL divergence of plain prefill from the last 50 of them, in nats; None before the first.
        agreement: Mean share of places with the same most probable token, over the same.
    """

    num_compared: int = 0
    divergence: float | None = None
    agreement: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EngineStats(Short):
    """Figures of the work of an engine in idle time so far.

    Attributes:
        promotions: Automatic promotion; all figures are 0 with `promote="off"`.
        fidelity: Comparison of requests with plain prefill; nothing was compared with `watch=0`.
    """

    promotions: AutoPromotions = field(default_factory=AutoPromotions)
    fidelity: WatchedFidelity = field(default_factory=WatchedFidelity)
