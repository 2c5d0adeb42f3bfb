"""Timing: all alternatives in one process, interleaved, medians with their spread.

Comes in: alternatives that do one piece of work each. Goes out: seconds. These machines are shared and noisy:
interleaving lets every alternative meet the same noise, and only ratios are worth reporting.
"""

from __future__ import annotations

import ctypes
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import torch

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with what is being measured, how many of its rounds are done, and how many there are."""


def silent(_what: str, _done: int, _total: int | None) -> None:
    """Show no progress."""


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


FAST_TURNS = 5
"""Turns in a round of what takes so little that all of them together take no longer than the slowest alternative."""


def interleave(
    alternatives: Mapping[str, Callable[[], object]],
    repeats: int,
    device: torch.device,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, Samples]:
    """Run every alternative once to warm up, then all of them in turn, `repeats` rounds.

    What is much faster than the slowest takes several turns in each round: few runs of a tenth of a second between two
    of many seconds would say more about the machine than about the work. Its order is drawn for every turn: what runs
    after a large copy finds other caches than what runs after itself.

    Args:
        alternatives: Each call does the whole piece of work; what it returns is dropped before the next starts.
        repeats: Rounds that count.
        device: Waited for before a clock is read, where it works on its own time.
        progress: Called before each round with the number of rounds that are done and of all rounds.
    """
    progress(0, repeats + 1)
    first = {name: _timed(work, device) for name, work in alternatives.items()}
    fast = [name for name in first if FAST_TURNS * first[name] < max(first.values())]
    taken: dict[str, list[float]] = {name: [] for name in alternatives}
    order = random.Random(0)
    for number in range(repeats):
        progress(number + 1, repeats + 1)
        for name in alternatives:
            if name not in fast:
                taken[name].append(_timed(alternatives[name], device))
        for _ in range(FAST_TURNS):
            for name in order.sample(fast, len(fast)):
                taken[name].append(_timed(alternatives[name], device))
    return {name: Samples(seconds=tuple(seconds)) for name, seconds in taken.items()}


def _timed(work: Callable[[], object], device: torch.device) -> float:
    gc.collect()
    _wait(device)
    started = time.perf_counter()
    result = work()
    _wait(device)
    taken = time.perf_counter() - started
    del result
    return taken


def give_back_memory() -> None:
    """Return freed memory to the system where that can be asked for, so that what is allocated next is seen to grow."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
