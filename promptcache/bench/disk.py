"""`promptcache bench disk`: the first request of a start, with its KV in files.

Comes in: a model and sizes. Goes out: a report. The clock starts at the call of `generate`. Engine and store are new
for every request from disk, so that every file is opened, verified and moved; the files are in the page cache, as after
any restart that is not the machine's.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from promptcache.bench.alternatives import ALTERNATIVES, BASELINE
from promptcache.bench.measure import Progress, Samples, silent
from promptcache.bench.report import Report
from promptcache.bench.workload import LetterTokenizer, Sizes, documents, workload
from promptcache.engine import Engine
from promptcache.kv import StoreConfig
from promptcache.runtime import Model

WAYS = ("disk", "disk, not verified", "memory")


def compare_disk(
    model: Model, all_sizes: Sequence[Sizes], repeats: int, folder: Path | None, progress: Progress = silent
) -> Report:
    """Measure a first request with KV on disk against plain prefill and against KV in memory, at each size.

    Args:
        folder: Where a folder for the files is made, and removed again; None is where temporary files are.
    """
    cells, rows = [], []
    for sizes in all_sizes:
        with tempfile.TemporaryDirectory(dir=folder, prefix="promptcache-bench-") as place:
            samples = _samples(model, sizes, repeats, Path(place), progress)
        baseline, memory = samples[BASELINE].median, samples["memory"].median
        shown = [f"{1e3 * samples[way].median:.1f} ({baseline / samples[way].median:.1f}x)" for way in WAYS]
        ratio = f"{samples['disk'].median / memory:.2f}"
        cells.append((f"{sizes.cached_tokens:,}", str(sizes.new_tokens), f"{1e3 * baseline:.1f}", *shown, ratio))
        rows.append({**sizes.data, "seconds": {name: list(each.seconds) for name, each in samples.items()}})
    return Report(
        name="disk",
        title=f"TTFT in ms from the call on, median of {repeats} (times faster than {BASELINE})",
        columns=("cached", "new", BASELINE, *WAYS, "disk / memory"),
        cells=tuple(cells),
        rows=tuple(rows),
    )


def _samples(model: Model, sizes: Sizes, repeats: int, folder: Path, progress: Progress) -> Mapping[str, Samples]:
    """Time all ways in turn, one round more than counts; what a request needs before its call is made outside."""
    _, prompt = documents(sizes)
    warm = _engine(model, sizes, None)
    for engine in (warm, _engine(model, sizes, StoreConfig(folder=folder))):
        engine.warm()
    plain = ALTERNATIVES[BASELINE](model, workload(model, sizes))
    ways: dict[str, Callable[[], float]] = {
        BASELINE: partial(_seconds, plain),
        "disk": lambda: _first_token(_engine(model, sizes, StoreConfig(folder=folder)), prompt),
        "disk, not verified": lambda: _first_token(
            _engine(model, sizes, StoreConfig(folder=folder, verify="never")), prompt
        ),
        "memory": lambda: _first_token(warm, prompt),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(repeats + 1):
        progress(sizes.title, number, repeats + 1)
        for name, way in ways.items():
            gc.collect()
            seconds = way()
            if number:
                taken[name].append(seconds)
    return {name: Samples(seconds=tuple(seconds)) for name, seconds in taken.items()}


def _engine(model: Model, sizes: Sizes, store: StoreConfig | None) -> Engine:
    engine = Engine(model, LetterTokenizer(), store=store)
    engine.add_schema(documents(sizes)[0])
    return engine


def _first_token(engine: Engine, prompt: str) -> float:
    answer = engine.generate(prompt, max_new_tokens=1, do_sample=False)
    assert answer.usage.num_encoded_tokens == 0, "everything was warmed"
    return answer.timing.ttft_s


def _seconds(work: Callable[[], torch.Tensor]) -> float:
    started = time.perf_counter()
    work().argmax().item()  # waits for the device
    return time.perf_counter() - started
