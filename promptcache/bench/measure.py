"""Timing: all alternatives in one process, interleaved, medians with their spread.

Comes in: alternatives that do one piece of work each. Goes out: seconds. These machines are shared and noisy:
interleaving lets every alternative meet the same noise, and only ratios are worth reporting.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Seconds that one alternative took, run by run."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle run."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """The first and the third quartile."""
        if len(self.seconds) < 2:
            return self.seconds[0], self.seconds[0]
        low, _, high = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return low, high


def interleave(
    alternatives: Mapping[str, Callable[[], object]], repeats: int, device: torch.device
) -> dict[str, Samples]:
    """Run every alternative once to warm up, then all of them in turn, `repeats` times.

    Args:
        alternatives: Each call does the whole piece of work; what it returns is dropped before the next starts.
        repeats: Rounds that count.
        device: Waited for before a clock is read, where it works on its own time.
    """
    taken: dict[str, list[float]] = {name: [] for name in alternatives}
    for number in range(repeats + 1):
        for name, work in alternatives.items():
            gc.collect()
            _wait(device)
            started = time.perf_counter()
            result = work()
            _wait(device)
            if number:
                taken[name].append(time.perf_counter() - started)
            del result
    return {name: Samples(seconds=tuple(seconds)) for name, seconds in taken.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
