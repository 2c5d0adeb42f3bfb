"""Audits: how far one cached request is from ordinary prefill, where that comes from, and what would help."""

from promptcache.audit.advice import audit
from promptcache.audit.ladder import Ladder, compare_predictions, joined_ids, mean_divergence, prompt_pieces
from promptcache.audit.report import (
    EQUAL_GAIN,
    Advice,
    AdviceKind,
    Audit,
    Cause,
    Distance,
    ModuleGain,
    Rung,
    largest_first,
)

__all__ = [
    "EQUAL_GAIN",
    "Advice",
    "AdviceKind",
    "Audit",
    "Cause",
    "Distance",
    "Ladder",
    "ModuleGain",
    "Rung",
    "audit",
    "compare_predictions",
    "joined_ids",
    "largest_first",
    "mean_divergence",
    "prompt_pieces",
]
