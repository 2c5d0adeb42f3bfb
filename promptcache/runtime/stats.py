"""Figures of what an engine does in idle time."""

from __future__ import annotations

from dataclasses import dataclass, field

from promptcache.diagnostics import Short
from promptcache.runtime.promoter import AutoPromotions
from promptcache.runtime.watch import WatchedFidelity


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EngineStats(Short):
    """What an engine has done in idle time so far.

    Attributes:
        promotions: Automatic promotion; all figures are 0 with `promote="off"`.
        fidelity: Comparison of requests with plain prefill; nothing was compared with `watch=0`.
    """

    promotions: AutoPromotions = field(default_factory=AutoPromotions)
    fidelity: WatchedFidelity = field(default_factory=WatchedFidelity)
