"""The benchmark of memory: `python -m benchmarks memory`."""

from __future__ import annotations

import ctypes
import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import psutil

from promptcache.bench.alternatives import concatenated_cache, last_logits
from promptcache.bench.harness import BenchReport, Progress, silent
from promptcache.bench.workload import Sizes, Workload, workload
from promptcache.runtime import Model, link

MIB = 2**20


def compare_memory(
    model: Model, all_sizes: Sequence[Sizes], requests: Sequence[int] = (20,), progress: Progress = silent
) -> BenchReport:
    """Compare resident memory and time to make the cache of live requests: linked, and as a `DynamicCache` each.

    Each request has had its first forward pass, so the KV of its own tokens counts too.
    """
    cells, rows = [], []
    measured = list(product([workload(model, sizes) for sizes in all_sizes], requests))
    for done, (work, num_requests) in enumerate(measured):
        progress(f"{work.sizes.title}, {num_requests} requests", done, len(measured))
        makers: dict[str, Callable[[], Any]] = {
            "prompt cache": partial(_linked_cache, model, work),
            "DynamicCache": partial(concatenated_cache, model, work),
        }
        found = {name: _live_requests(model, work, make, num_requests) for name, make in makers.items()}
        grown = {name: nbytes for name, (nbytes, _) in found.items()}
        make_s = {name: seconds for name, (_, seconds) in found.items()}
        modules = work.sizes.cached_tokens * model.shape.token_bytes
        cells.append(
            (
                f"{modules / MIB:.0f}",
                str(num_requests),
                *(f"{nbytes / MIB:.1f}" for nbytes in grown.values()),
                *(f"{1e3 * statistics.median(seconds):.3f}" for seconds in make_s.values()),
            )
        )
        rows.append(
            {
                **work.sizes.data,
                "requests": num_requests,
                "module_bytes": modules,
                "grown_bytes": grown,
                "make_seconds": make_s,
            }
        )
    return BenchReport(
        name="memory",
        title="MiB of resident memory that live requests add, and ms to make the cache of one",
        columns=("modules MiB", "live requests", "prompt cache", "DynamicCache", "linking ms", "concatenating ms"),
        cells=tuple(cells),
        rows=tuple(rows),
    )


def _live_requests(model: Model, work: Workload, make: Callable[[], Any], num_requests: int) -> tuple[int, list[float]]:
    """Return the bytes of resident memory that live requests add, and the seconds to make each of their caches."""
    process = psutil.Process()
    _prefill(model, work, make())  # the first forward of a process allocates memory that it keeps
    _give_back_memory()
    before = process.memory_info().rss
    live, seconds = [], []
    for _ in range(num_requests):
        started = time.perf_counter()
        cache = make()
        seconds.append(time.perf_counter() - started)
        _prefill(model, work, cache)
        live.append(cache)
    _give_back_memory()  # what forward passes freed belongs to no request
    return process.memory_info().rss - before, seconds


def _linked_cache(model: Model, work: Workload) -> Any:
    return link(work.tokens, work.handles, model).cache


def _prefill(model: Model, work: Workload, cache: Any) -> None:
    last_logits(model, work.tokens.token_ids, work.tokens.position_ids, cache)


def _give_back_memory() -> None:
    """Return freed memory to the operating system, where that is possible, before resident memory is read."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
