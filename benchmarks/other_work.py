"""The work of other programs during a benchmark of several processes."""

from __future__ import annotations

import time

import psutil


class OtherWork:
    """How much other programs have worked since this was made. Benchmarks of several processes need quiet machines."""

    def __init__(self) -> None:
        self._started, self._others_s = time.perf_counter(), _others_s()

    @property
    def share(self) -> float:
        """Fraction of all cores that programs used which are not this one, nor processes that it started and ended."""
        seconds = (time.perf_counter() - self._started) * (psutil.cpu_count() or 1)
        return max(0.0, _others_s() - self._others_s) / seconds


def _others_s() -> float:
    """Return the seconds of all processors that other programs have used."""
    machine, own = psutil.cpu_times(), psutil.Process().cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(getattr(machine, name, 0.0) for name in names) - sum(own[:4])
