"""Figures of what an engine does beside requests."""

from __future__ import annotations

from dataclasses import dataclass, field

from promptcache.diagnostics import Short
from promptcache.runtime.repetition import Promotions


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class EngineStats(Short):
    """Figures of the work of an engine beside its requests so far.

    Attributes:
        promotions: Combinations of modules that were promoted.
    """

    promotions: Promotions = field(default_factory=Promotions)
