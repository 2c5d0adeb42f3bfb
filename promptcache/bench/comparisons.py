"""The benchmarks of one request: `promptcache bench ttft` and `decode`.

Each function takes a model and sizes, and returns a report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from promptcache.bench.alternatives import ALTERNATIVES, BASELINE, decoding, decoding_concatenated
from promptcache.bench.harness import Benchmark, BenchReport, Progress, Samples, compare, silent
from promptcache.bench.workload import Sizes, workload
from promptcache.runtime import Model


def compare_ttft(model: Model, all_sizes: Sequence[Sizes], repeats: int, progress: Progress = silent) -> BenchReport:
    """Compare the time from a planned request to the logits of its first token with every alternative."""

    def benchmarks() -> Iterator[Benchmark]:
        for sizes in all_sizes:
            work = workload(model, sizes)
            alternatives = {name: make(model, work) for name, make in ALTERNATIVES.items()}
            yield Benchmark(title=sizes.title, data=sizes.data, alternatives=alternatives)

    return compare(
        "ttft",
        f"TTFT in ms, median of {repeats} rounds (times faster than {BASELINE})",
        ("cached", "new", *ALTERNATIVES),
        benchmarks(),
        against_baseline,
        repeats=repeats,
        device=model.device,
        progress=progress,
    )


def compare_decoding(
    model: Model, all_sizes: Sequence[Sizes], repeats: int, num_tokens: int = 16, progress: Progress = silent
) -> BenchReport:
    """Compare the time of one decoded token over linked modules and over a `DynamicCache` with the same KV."""

    def benchmarks() -> Iterator[Benchmark]:
        for sizes in all_sizes:
            work = workload(model, sizes)
            data = {**sizes.data, "decoded_tokens": num_tokens}
            alternatives = {
                "concatenate": decoding_concatenated(model, work, num_tokens),
                "prompt cache": decoding(model, work, num_tokens),
            }
            yield Benchmark(title=sizes.title, data=data, alternatives=alternatives)

    def cells(benchmark: Benchmark, samples: Mapping[str, Samples]) -> tuple[str, ...]:
        copied, linked = (each.median_ms / num_tokens for each in samples.values())
        return f"{benchmark.data['cached_tokens']:,}", f"{copied:.1f}", f"{linked:.1f}", f"{copied / linked:.2f}x"

    return compare(
        "decode",
        f"ms for one decoded token, median of {repeats} rounds",
        ("cached", "DynamicCache", "prompt cache", "ratio"),
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
