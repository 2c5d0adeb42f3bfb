"""`promptcache bench ttft`, `linking` and `decode`: one request, against every alternative.

Comes in: a model and sizes. Goes out: reports. All alternatives run in one process, interleaved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import psutil
import torch

from promptcache.bench.alternatives import ALTERNATIVES, BASELINE, decoding
from promptcache.bench.measure import Progress, Samples, give_back_memory, interleave, silent
from promptcache.bench.report import Report
from promptcache.bench.workload import Sizes, Workload, workload
from promptcache.runtime import Model, link


def compare_ttft(model: Model, all_sizes: Sequence[Sizes], repeats: int, progress: Progress = silent) -> Report:
    """Measure the time from a planned request to the logits of its first token, at each size."""
    cells, rows = [], []
    for sizes in all_sizes:
        work = workload(model, sizes)
        ways = {name: make(model, work) for name, make in ALTERNATIVES.items()}
        samples = interleave(ways, repeats, model.device, partial(progress, sizes.title))
        cells.append((f"{sizes.cached_tokens:,}", str(sizes.new_tokens), *_against_baseline(samples)))
        rows.append({**sizes.data, "seconds": _seconds(samples)})
    return Report(
        name="ttft",
        title=f"TTFT in ms, median of {repeats} rounds (times faster than {BASELINE})",
        columns=("cached", "new", *ALTERNATIVES),
        cells=tuple(cells),
        rows=tuple(rows),
    )


def measure_linking(model: Model, all_sizes: Sequence[Sizes], repeats: int, progress: Progress = silent) -> Report:
    """Measure linking without any forward pass, and the resident memory that a linked request adds, at each size."""
    cells, rows = [], []
    for sizes in all_sizes:
        work = workload(model, sizes)
        ways = {"link": partial(link, work.tokens, work.runs, model)}
        samples = interleave(ways, repeats, model.device, partial(progress, sizes.title))["link"]
        segments, resident = _live_requests(work, model)
        cells.append(
            (f"{sizes.cached_tokens:,}", str(segments), f"{1e3 * samples.median:.3f}", f"{resident / 1024:.1f}")
        )
        rows.append({**sizes.data, "segments": segments, "seconds": list(samples.seconds), "resident_bytes": resident})
    return Report(
        name="linking",
        title=f"Linking in ms, median of {repeats} rounds; resident memory that each of 20 live requests adds",
        columns=("cached", "segments", "linking ms", "resident KiB"),
        cells=tuple(cells),
        rows=tuple(rows),
    )


def _live_requests(work: Workload, model: Model) -> tuple[int, float]:
    """Return the segments of a linked request, and the bytes that each of 20 keeps resident; none outlives this."""
    process = psutil.Process()
    give_back_memory()
    before = process.memory_info().rss
    held = [link(work.tokens, work.runs, model) for _ in range(20)]
    return len(held[0].positions.segments), (process.memory_info().rss - before) / len(held)


def compare_decoding(
    model: Model, all_sizes: Sequence[Sizes], repeats: int, num_tokens: int = 16, progress: Progress = silent
) -> Report:
    """Measure the time for one decoded token after a linked request, over `num_tokens` of them, at each size."""
    cells, rows = [], []
    for sizes in all_sizes:
        work = workload(model, sizes)
        steps: dict[str, Callable[[], Any]] = {
            name: decoding(model, work, name, num_tokens) for name in ("concatenate", "prompt cache")
        }
        samples = interleave(steps, repeats, model.device, partial(progress, sizes.title))
        medians = [samples[name].median / num_tokens for name in steps]
        cells.append(
            (f"{sizes.cached_tokens:,}", *(f"{1e3 * each:.1f}" for each in medians), f"{medians[0] / medians[1]:.2f}x")
        )
        rows.append({**sizes.data, "decoded_tokens": num_tokens, "seconds": _seconds(samples)})
    return Report(
        name="decode",
        title=f"ms for one decoded token, median of {repeats} rounds",
        columns=("cached", "DynamicCache", "prompt cache", "ratio"),
        cells=tuple(cells),
        rows=tuple(rows),
    )


def _against_baseline(samples: dict[str, Samples]) -> tuple[str, ...]:
    base = samples[BASELINE].median
    return tuple(f"{1e3 * each.median:.1f} ({base / each.median:.1f}x)" for each in samples.values())


def _seconds(samples: dict[str, Samples]) -> dict[str, list[float]]:
    return {name: list(each.seconds) for name, each in samples.items()}


def set_threads(threads: int | None) -> None:
    """Set torch's threads, where a number is given."""
    if threads is not None:
        torch.set_num_threads(threads)
