"""The benchmark of batches: `python -m benchmarks batch`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from promptcache.bench.alternatives import concatenated_cache
from promptcache.bench.harness import Benchmark, BenchReport, Progress, Samples, compare, silent
from promptcache.bench.workload import LetterTokenizer, Sizes, Workload, documents, workload
from promptcache.engine import Engine
from promptcache.runtime import Model, link, token_tensor

MIB = 2**20


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


def _generate_copies(model: Model, work: Workload, num_rows: int, num_tokens: int) -> Any:
    linked = link(work.tokens, work.handles, model)
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
