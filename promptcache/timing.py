"""Timing of alternatives that run in turn in one process, and the facts of the machine.

The machines are shared and noisy. Interleaved runs meet the same noise, so compare ratios, not times.
"""

from __future__ import annotations

import gc
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

import promptcache

if TYPE_CHECKING:
    import torch

FAST_TURNS = 5
"""An alternative that is more than this many times faster than the slowest one runs this many times in each round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Seconds of each run of one alternative."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median run, in seconds."""
        return statistics.median(self.seconds)

    @property
    def median_ms(self) -> float:
        """The median run, in milliseconds."""
        return 1e3 * self.median


def interleave(
    alternatives: Mapping[str, Callable[[], object]],
    repeats: int,
    device: torch.device,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, Samples]:
    """Run every alternative once to warm up, then all of them in turn, `repeats` rounds.

    Alternatives that are much faster than the slowest run `FAST_TURNS` times in each round. Their order is random in
    each turn, because a large copy leaves other data in the CPU caches.

    Args:
        device: It is waited for before the clock is read.
        progress: Called before each round with the number of finished rounds and of all rounds.
    """
    progress(0, repeats + 1)
    first = {name: _timed(run, device) for name, run in alternatives.items()}
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


def _timed(run: Callable[[], object], device: torch.device) -> float:
    gc.collect()
    _wait_for(device)
    started = time.perf_counter()
    result = run()
    _wait_for(device)
    taken = time.perf_counter() - started
    del result
    return taken


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def hardware() -> dict[str, object]:
    """Return the processor, the GPU if there is one, the number of threads, and versions of Python and libraries."""
    import torch
    import transformers

    return {
        "processor": _processor_name(),
        "cores": psutil.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "promptcache": promptcache.__version__,
    }


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - not a file of the user's
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return "unknown"
