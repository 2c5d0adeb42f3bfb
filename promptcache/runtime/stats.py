"""Figures of what an engine does in idle time."""

from __future__ import annotations

from dataclasses import dataclass, field

from promptcache.diagnostics import Short
from promptcache.runtime.promoter import AutoPromotions


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EngineStats(Short):
    """Figures of the work of an engine in idle time so far.

    Attributes:
        promotions: Automatic promotion; all figures are 0 with `promote="off"`.
    """

    promotions: AutoPromotions = field(default_factory=AutoPromotions)
