"""The benchmarks of one request: `promptcache bench ttft` and `decode`.

Each function takes a model and sizes, and returns a report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from promptcache.bench.alternatives import (
    ALTERNATIVES,
    BASELINE,
    COMPILED,
    compiled,
    decoding,
    decoding_compiled,
    decoding_concatenated,
)
from promptcache.bench.harness import Benchmark, BenchReport, Progress, Samples, compare, silent
from promptcache.bench.workload import Sizes, workload
from promptcache.runtime import Model


def compare_ttft(
    model: Model, all_sizes: Sequence[Sizes], repeats: int, progress: Progress = silent, *, is_compiled: bool = False
) -> BenchReport:
    """Compare the time from a planned request to the logits of its first token with every alternative.

    Args:
        is_compiled: Measure a compiled pass over a `StaticCache`, too.
    """
    makers = {**ALTERNATIVES, **({COMPILED: compiled} if is_compiled else {})}

    def benchmarks() -> Iterator[Benchmark]:
        for sizes in all_sizes:
            work = workload(model, sizes)
            alternatives = {name: make(model, work) for name, make in makers.items()}
            yield Benchmark(title=sizes.title, data=sizes.data, alternatives=alternatives)

    return compare(
        "ttft",
        f"TTFT in ms, median of {repeats} rounds (times faster than {BASELINE})",
        ("cached", "new", *makers),
        benchmarks(),
        against_baseline,
        repeats=repeats,
        device=model.device,
        progress=progress,
    )


def compare_decoding(
    model: Model,
    all_sizes: Sequence[Sizes],
    repeats: int,
    num_tokens: int = 16,
    progress: Progress = silent,
    *,
    is_compiled: bool = False,
) -> BenchReport:
    """Compare the time of one decoded token over linked modules and over a `DynamicCache` with the same KV.

    Args:
        is_compiled: Measure a compiled pass over a `StaticCache`, too.
    """

    def benchmarks() -> Iterator[Benchmark]:
        for sizes in all_sizes:
            work = workload(model, sizes)
            data = {**sizes.data, "decoded_tokens": num_tokens}
            alternatives = {
                "concatenate": decoding_concatenated(model, work, num_tokens),
                "prompt cache": decoding(model, work, num_tokens),
            }
            if is_compiled:
                alternatives[COMPILED] = decoding_compiled(model, work, num_tokens)
            yield Benchmark(title=sizes.title, data=data, alternatives=alternatives)

    def cells(benchmark: Benchmark, samples: Mapping[str, Samples]) -> tuple[str, ...]:
        copied, linked, *more = (each.median_ms / num_tokens for each in samples.values())
        ratios = (f"{each / linked:.2f}x" for each in (copied, *more))
        return (f"{benchmark.data['cached_tokens']:,}", *(f"{each:.1f}" for each in (copied, linked, *more)), *ratios)

    columns = ["cached", "DynamicCache", "prompt cache", "ratio"]
    if is_compiled:
        columns[3:] = [COMPILED, "DynamicCache / prompt cache", f"{COMPILED} / prompt cache"]
    return compare(
        "decode",
        f"ms for one decoded token, median of {repeats} rounds",
        tuple(columns),
        benchmarks(),
        cells,
        repeats=repeats,
        device=model.device,
        progress=progress,
    )


def against_baseline(benchmark: Benchmark, samples: Mapping[str, Samples]) -> tuple[str, ...]:
    """Return the sizes, then the median of each alternative in ms and how many times faster than the baseline it is."""
    baseline = samples[BASELINE].median
    times = (
        f"{each.median_ms:.1f}" + ("" if name == BASELINE else f" ({baseline / each.median:.1f}x)")
        for name, each in samples.items()
    )
    return f"{benchmark.data['cached_tokens']:,}", str(benchmark.data["new_tokens"]), *times
