"""The benchmark of stores on disk: `python -m benchmarks disk`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from promptcache.bench.alternatives import ALTERNATIVES, BASELINE
from promptcache.bench.comparisons import against_baseline
from promptcache.bench.harness import Benchmark, BenchReport, Fresh, Progress, Samples, compare, silent
from promptcache.bench.workload import LetterTokenizer, Sizes, documents, workload
from promptcache.engine import Engine
from promptcache.kv import StoreConfig
from promptcache.runtime import Model


def compare_disk(model: Model, all_sizes: Sequence[Sizes], repeats: int, progress: Progress = silent) -> BenchReport:
    """Compare the first request of a new engine with KV on disk, KV in memory, and plain prefill.

    The clock runs from the call of `generate` to the end of its only token. Engine and store are new for each request
    from disk, so every file is opened, verified and copied. The files are in the page cache of the operating system.
    """

    def benchmarks() -> Iterator[Benchmark]:
        for sizes in all_sizes:
            with tempfile.TemporaryDirectory(prefix="promptcache-bench-") as place:
                yield _disk_benchmark(model, sizes, Path(place))

    def cells(benchmark: Benchmark, samples: Mapping[str, Samples]) -> tuple[str, ...]:
        return (*against_baseline(benchmark, samples), f"{samples['disk'].median / samples['memory'].median:.2f}")

    return compare(
        "disk",
        f"TTFT in ms from the call on, median of {repeats} rounds (times faster than {BASELINE})",
        ("cached", "new", BASELINE, "disk", "memory", "disk / memory"),
        benchmarks(),
        cells,
        repeats=repeats,
        device=model.device,
        progress=progress,
    )


def _disk_benchmark(model: Model, sizes: Sizes, folder: Path) -> Benchmark:
    schema, prompt = documents(sizes)

    def engine(store: StoreConfig | None) -> Engine:
        made = Engine(model, LetterTokenizer(), store=store)
        made.add_schema(schema)
        return made

    def first_token(engine: Engine) -> None:
        answer = engine.generate(prompt, max_new_tokens=1, do_sample=False)
        assert answer.usage.num_encoded_tokens == 0, "the store has all modules"

    kept = StoreConfig(folder=folder)
    in_memory = engine(None)
    for each in (in_memory, engine(kept)):
        each.warm()
        each.generate(prompt, max_new_tokens=1)  # encodes modules behind the module before them
    return Benchmark(
        title=sizes.title,
        data=sizes.data,
        alternatives={
            BASELINE: ALTERNATIVES[BASELINE](model, workload(model, sizes)),
            "disk": Fresh(partial(engine, kept), first_token),
            "memory": partial(first_token, in_memory),
        },
    )
