"""The result of a training: what held-out prompts show before and after it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from promptcache.atomic import atomic_write

REPORT = "report.json"
"""Name of the file in the folder of an adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutFigures:
    """Means over held-out prompts, at the places of the answers after plain prefill.

    Attributes:
        divergence: KL divergence of modular answers, in nats.
        agreement: Share of places at which the most probable token is the same.
        distance: Squared distance of the KV of modules from that after plain prefill, relative to the distance without
            an adapter.
        num_prompts: Number of prompts.
    """

    divergence: float
    agreement: float
    distance: float
    num_prompts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptReport:
    """The result of `adapt_model`.

    Attributes:
        model: Name of the model's type and class.
        rank, learning_rate, seed: As in the settings.
        num_steps: Steps in all, those of earlier runs included.
        num_lessons: Prompts that were learned from.
        seconds: Time of the training, without validation.
        before, after: Figures of the same held-out prompts.
    """

    model: str
    rank: int
    learning_rate: float
    seed: int
    num_steps: int
    num_lessons: int
    seconds: float
    before: HeldOutFigures
    after: HeldOutFigures

    def data(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return asdict(self)

    def write(self, folder: Path) -> None:
        """Write the report into the folder of the adapter."""
        with atomic_write(folder / REPORT) as file:
            file.write(json.dumps(self.data(), indent=2).encode() + b"\n")
