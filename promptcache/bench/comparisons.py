"""The benchmarks of speed and memory: `promptcache bench ttft`, `decode`, `disk`, `batch`, `prompt` and `memory`.

Each function takes a model (or an engine) and sizes, and returns a report.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import DynamicCache

from promptcache.bench.alternatives import ALTERNATIVES, BASELINE, concatenated_cache, decoding, last_logits
from promptcache.bench.harness import (
    Benchmark,
    BenchReport,
    Fresh,
    Progress,
    Samples,
    compare,
    give_back_memory,
    silent,
)
from promptcache.bench.workload import LetterTokenizer, Sizes, Workload, documents, workload
from promptcache.engine import Engine
from promptcache.kv import StoreConfig
from promptcache.runtime import Model, link, token_tensor, used_tokens

MIB = 2**20


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
        _against_baseline,
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
            alternatives = {name: decoding(model, work, name, num_tokens) for name in ("concatenate", "prompt cache")}
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
        return (*_against_baseline(benchmark, samples), f"{samples['disk'].median / samples['memory'].median:.2f}")

    return compare(
        "disk",
        f"TTFT in ms from the call on, median of {repeats} rounds (times faster than {BASELINE})",
        ("cached", "new", BASELINE, "disk", "disk, not verified", "memory", "disk / memory"),
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

    kept, unverified = (StoreConfig(folder=folder, verify=verify) for verify in ("first", "never"))
    in_memory = engine(None)
    in_memory.warm()
    engine(kept).warm()
    return Benchmark(
        title=sizes.title,
        data=sizes.data,
        alternatives={
            BASELINE: ALTERNATIVES[BASELINE](model, workload(model, sizes)),
            "disk": Fresh(partial(engine, kept), first_token),
            "disk, not verified": Fresh(partial(engine, unverified), first_token),
            "memory": partial(first_token, in_memory),
        },
    )


def compare_batch(
    model: Model, sizes: Sizes, num_rows: int, num_tokens: int, repeats: int, progress: Progress = silent
) -> BenchReport:
    """Compare decoding of rows that share linked modules with decoding of rows that have copies of their own."""
    schema, prompt = documents(sizes)
    engine = Engine(model, LetterTokenizer(), history_bytes=0)
    engine.add_schema(schema)
    engine.warm()

    def together() -> Any:
        return engine.generate_batch([prompt] * num_rows, max_new_tokens=num_tokens, do_sample=False, eos_token_id=[])

    def cells(_benchmark: Benchmark, samples: Mapping[str, Samples]) -> tuple[str, ...]:
        copied, linked = (num_rows * num_tokens / each.median for each in samples.values())
        mib = sizes.cached_tokens * model.shape.token_bytes / MIB
        return f"{copied:.1f}", f"{linked:.1f}", f"{linked / copied:.1f}x", f"{num_rows * mib:.0f}", f"{mib:.0f}"

    benchmark = Benchmark(
        title=sizes.title,
        data={**sizes.data, "rows": num_rows, "decoded_tokens": num_tokens},
        alternatives={
            "own copies": partial(_generate_copies, model, workload(model, sizes), num_rows, num_tokens),
            "prompt cache": together,
        },
    )
    return compare(
        "batch",
        f"{num_rows} rows that share {sizes.cached_tokens:,} tokens: tokens/s, median of {repeats} rounds",
        ("own copies", "prompt cache", "ratio", "KV MiB, own copies", "KV MiB, shared"),
        [benchmark],
        cells,
        repeats=repeats,
        device=model.device,
        progress=progress,
    )


def compare_prompt(engine: Engine, prompt: str | Path, repeats: int, progress: Progress = silent) -> BenchReport:
    """Compare `generate` of one token on a warm schema with plain prefill of the same tokens.

    Args:
        engine: The prompt's schema is added to it; this function warms it.
        prompt: XML text or a path; parsed again in every run.
    """
    plan = engine.plan(prompt)
    engine.warm(plan.selection.schema.name)
    token_ids = token_tensor([token.token_id for token in used_tokens(plan.tokens)], engine.model.device)

    def plain() -> Any:
        return engine.model.hf.generate(
            token_ids,
            attention_mask=token_ids.new_ones(token_ids.shape),
            past_key_values=DynamicCache(),
            max_new_tokens=1,
            do_sample=False,
            pad_token_id=0,
        )

    def cells(benchmark: Benchmark, samples: Mapping[str, Samples]) -> tuple[str, ...]:
        cached, plain = (each.median_ms for each in samples.values())
        reused, new = benchmark.data.values()
        return f"{reused:,}", str(new), f"{cached:.1f}", f"{plain:.1f}", f"{plain / cached:.1f}x"

    benchmark = Benchmark(
        title="rounds",
        data={"reused_tokens": plan.num_reused_tokens, "new_tokens": plan.num_new_tokens},
        alternatives={
            "cached": partial(engine.generate, prompt, max_new_tokens=1, do_sample=False),
            "plain": plain,
        },
    )
    return compare(
        "prompt",
        f"TTFT from the call on, median of {repeats} rounds",
        ("reused", "new", "cached ms", "plain ms", "ratio"),
        [benchmark],
        cells,
        repeats=repeats,
        device=engine.model.device,
        progress=progress,
    )


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
    give_back_memory()
    before = process.memory_info().rss
    live, seconds = [], []
    for _ in range(num_requests):
        started = time.perf_counter()
        cache = make()
        seconds.append(time.perf_counter() - started)
        _prefill(model, work, cache)
        live.append(cache)
    give_back_memory()  # what forward passes freed belongs to no request
    return process.memory_info().rss - before, seconds


def _linked_cache(model: Model, work: Workload) -> Any:
    return link(work.tokens, work.runs, model).cache


def _prefill(model: Model, work: Workload, cache: Any) -> None:
    last_logits(model, work.tokens.token_ids, work.tokens.position_ids, cache)


def _against_baseline(benchmark: Benchmark, samples: Mapping[str, Samples]) -> tuple[str, ...]:
    """Return the sizes, then the median of each alternative in ms and how many times faster than the baseline it is."""
    baseline = samples[BASELINE].median
    times = (
        f"{each.median_ms:.1f}" + ("" if name == BASELINE else f" ({baseline / each.median:.1f}x)")
        for name, each in samples.items()
    )
    return f"{benchmark.data['cached_tokens']:,}", str(benchmark.data["new_tokens"]), *times


def _generate_copies(model: Model, work: Workload, num_rows: int, num_tokens: int) -> Any:
    linked = link(work.tokens, work.runs, model)
    cache: Any = concatenated_cache(model, work)
    cache.batch_repeat_interleave(num_rows)
    num_seen = linked.positions.num_cached + len(linked.token_ids)
    return model.hf.generate(
        token_tensor(linked.token_ids, model.device).expand(num_rows, -1),
        position_ids=token_tensor(linked.position_ids, model.device).expand(num_rows, -1),
        attention_mask=torch.ones((num_rows, num_seen), dtype=torch.long, device=model.device),
        past_key_values=cache,
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        do_sample=False,
        pad_token_id=0,
    )
