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
from typing import TypeAlias

import psutil
import torch

from benchmarks.common import BenchReport, CharacterTokenizer, Sizes, documents
from promptcache.encode import prepare
from promptcache.engine import Engine
from promptcache.model import Model
from promptcache.planning import PromptSource
from promptcache.progress import Progress, silent
from promptcache.rows import Batch

MIB = 2**20


def compare_memory(
    model: Model, all_sizes: Sequence[Sizes], requests: Sequence[int] = (20,), progress: Progress = silent
) -> BenchReport:
    """Compare resident memory and time to make the cache of live requests: linked, and as a `DynamicCache` each.

    Each request has had its first forward pass, so the KV of its own tokens counts too.
    """
    cells, rows = [], []
    measured = list(product(all_sizes, requests))
    for done, (sizes, num_requests) in enumerate(measured):
        progress(f"{sizes.cached_tokens:,} cached tokens, {num_requests} requests", done, len(measured))
        engine = Engine(model, CharacterTokenizer(), history=False)
        made = documents(sizes)
        engine.add_schema(made.schema)
        makers = {
            "prompt cache": partial(_row, engine, made.prompt),
            "DynamicCache": partial(_copy, engine, made.prompt),
        }
        found = {name: _live_requests(make, num_requests) for name, make in makers.items()}
        modules = sizes.cached_tokens * model.shape.token_bytes
        grown = {name: nbytes for name, (nbytes, _) in found.items()}
        make_s = {name: seconds for name, (_, seconds) in found.items()}
        cells.append(
            (
                f"{modules / MIB:.0f}",
                str(num_requests),
                *(f"{nbytes / MIB:.1f}" for nbytes in grown.values()),
                *(f"{1e3 * statistics.median(seconds):.3f}" for seconds in make_s.values()),
            )
        )
        counts = {"requests": num_requests, "module_bytes": modules}
        rows.append({**sizes.data, **counts, "grown_bytes": grown, "make_seconds": make_s})
    return BenchReport(
        name="memory",
        title="MiB of resident memory that live requests add, and ms to plan a request and make its cache",
        columns=("modules MiB", "live requests", "prompt cache", "DynamicCache", "linking ms", "copying ms"),
        cells=tuple(cells),
        rows=tuple(rows),
    )


_Prefill: TypeAlias = Callable[[], object]
"""Computes the first pass of a live request. It holds the request."""


def _row(engine: Engine, prompt: PromptSource) -> _Prefill:
    """Return a request as a row, over the KV of all."""
    executor = engine._executor
    prepared, batch = prepare(engine.plan(prompt), executor), Batch(engine.model, executor.copies)
    tokens = prepared.plan.tokens
    row = batch.join(tokens, prepared.fetched.kv_of)
    return lambda: batch.step([(row, tokens.token_ids)])


def _copy(engine: Engine, prompt: PromptSource) -> _Prefill:
    """Return a request over a copy of all KV."""
    inputs = engine.link(prompt)
    return torch.no_grad()(lambda: engine.model.hf(**inputs, logits_to_keep=1))


def _live_requests(make: Callable[[], _Prefill], num_requests: int) -> tuple[int, list[float]]:
    """Return the bytes of resident memory that live requests add, and the seconds to make each of their caches."""
    process = psutil.Process()
    make()()  # the first forward of a process allocates memory that it keeps
    _give_back_memory()
    before = process.memory_info().rss
    live, seconds = [], []
    for _ in range(num_requests):
        started = time.perf_counter()
        prefill = make()
        seconds.append(time.perf_counter() - started)
        prefill()
        live.append(prefill)
    _give_back_memory()  # what forward passes freed belongs to no request
    return process.memory_info().rss - before, seconds


def _give_back_memory() -> None:
    """Return freed memory to the operating system, where that is possible, before resident memory is read."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)
