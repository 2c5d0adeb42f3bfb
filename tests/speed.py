"""Limits of CPU time that hold on slow machines, too."""

import time

_REFERENCE_S = 0.005
"""CPU time of `_work` in seconds, on the machine on which the limits of the tests were chosen."""


def is_within(seconds: float, limit_s: float) -> bool:
    """Return whether a CPU time is below a limit that was chosen on a fast machine. On a slower one it is longer."""
    return seconds < limit_s or seconds < limit_s * _slowness()


def _slowness() -> float:
    """Return how many times as long as on the reference machine a fixed piece of work takes now."""
    start = time.process_time()
    for _ in range(5):
        _work()
    return (time.process_time() - start) / 5 / _REFERENCE_S


def _work() -> str:
    table = {number % 997: f"{number}" for number in range(60_000)}
    return "".join(sorted(table.values()))
