"""The harness of all benchmarks: it runs the alternatives of each case in turn, in one process, and reports medians.

The machines are shared and noisy. Interleaved runs meet the same noise, so compare ratios, not times.
"""

from __future__ import annotations

import gc
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import psutil

import promptcache

if TYPE_CHECKING:
    import torch

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with the name of the case, the number of finished rounds, and the number of all rounds."""


def silent(_what: str, _done: int, _total: int | None) -> None:
    """Show no progress."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """A run that needs new state each time; only `run` is timed.

    Attributes:
        prepare: Makes the state, outside of the clock.
        run: Takes the state.
    """

    prepare: Callable[[], Any]
    run: Callable[[Any], object]


TimedRun: TypeAlias = Callable[[], object] | Fresh
"""One complete piece of work. Its result is dropped before the next run starts."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """One size at which alternatives are compared.

    Attributes:
        title: For the progress bar.
        data: The sizes, for JSON.
        alternatives: By the name that tables show.
    """

    title: str
    data: Mapping[str, Any]
    alternatives: Mapping[str, TimedRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """The outcome of one benchmark.

    Attributes:
        name: The name of the command.
        title: What the cells mean, with their unit.
        columns: Headings of the table.
        cells: Rows of the table, as long as `columns`.
        rows: The same with the seconds of each run, for JSON.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    rows: tuple[Mapping[str, Any], ...]


def compare(
    name: str,
    title: str,
    columns: tuple[str, ...],
    benchmarks: Iterable[Benchmark],
    cells: Callable[[Benchmark, Mapping[str, Samples]], tuple[str, ...]],
    *,
    repeats: int,
    device: torch.device,
    progress: Progress = silent,
) -> BenchReport:
    """Time the alternatives of each benchmark and return a report with one row for each.

    Args:
        benchmarks: Made one by one, so that the memory of one is free before the next is made.
        cells: Formats one row of the table.
        repeats: Rounds that count; one more warms up.
        device: The harness waits for it before it reads a clock.
    """
    shown, rows = [], []
    for benchmark in benchmarks:
        samples = interleave(benchmark.alternatives, repeats, device, partial(progress, benchmark.title))
        shown.append(cells(benchmark, samples))
        seconds = {alternative: list(each.seconds) for alternative, each in samples.items()}
        rows.append({**benchmark.data, "seconds": seconds})
    return BenchReport(name=name, title=title, columns=columns, cells=tuple(shown), rows=tuple(rows))


FAST_TURNS = 5
"""An alternative that is more than this many times faster than the slowest one runs this many times in each round."""


def interleave(
    alternatives: Mapping[str, TimedRun],
    repeats: int,
    device: torch.device,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, Samples]:
    """Run every alternative once to warm up, then all of them in turn, `repeats` rounds.

    Alternatives that are much faster than the slowest run `FAST_TURNS` times in each round. Their order is random in
    each turn, because a large copy leaves other data in the CPU caches.

    Args:
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


def _timed(run: TimedRun, device: torch.device) -> float:
    work = partial(run.run, run.prepare()) if isinstance(run, Fresh) else run
    gc.collect()
    _wait_for(device)
    started = time.perf_counter()
    result = work()
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
