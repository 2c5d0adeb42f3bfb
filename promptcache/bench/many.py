"""`promptcache bench memory`, `batch`, `encode` and `plan`: many live requests, many rows, many modules.

Comes in: a model and sizes. Goes out: reports.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import psutil
import torch
from transformers import DynamicCache

from promptcache.bench.alternatives import concatenated_cache, last_logits
from promptcache.bench.measure import Progress, give_back_memory, interleave, silent
from promptcache.bench.report import Report
from promptcache.bench.workload import LetterTokenizer, Sizes, Workload, letters, workload
from promptcache.kv import MemoryStore
from promptcache.language import check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.runtime import (
    Catalog,
    Executor,
    Model,
    Planner,
    Pool,
    generate_together,
    link,
    link_batch,
    schema_state,
    token_tensor,
)

MIB = 2**20


def compare_memory(
    model: Model, all_sizes: Sequence[Sizes], requests: Sequence[int] = (20,), progress: Progress = silent
) -> Report:
    """Measure the resident memory that so many live requests add: linked, and as a `DynamicCache` each.

    Every request has had its first forward pass, so that its own tokens' KV counts, and whatever else it keeps.
    """
    process = psutil.Process()
    cells, rows = [], []
    measured = list(product([workload(model, sizes) for sizes in all_sizes], requests))
    for done, (work, num_requests) in enumerate(measured):
        progress(f"{work.sizes.title}, {num_requests} requests", done, len(measured))
        grown = {}
        makers: dict[str, Callable[[], Any]] = {
            "prompt cache": partial(_linked_cache, model, work),
            "DynamicCache": partial(concatenated_cache, model, work),
        }
        for name, make in makers.items():
            _prefilled(model, work, make())  # whatever the first forward of a process allocates
            give_back_memory()
            before = process.memory_info().rss
            held = [_prefilled(model, work, make()) for _ in range(num_requests)]
            give_back_memory()  # what their forward passes freed is no request's
            grown[name] = process.memory_info().rss - before
            del held
        modules = work.sizes.cached_tokens * model.shape.token_bytes
        cells.append((f"{modules / MIB:.0f}", str(num_requests), *(f"{each / MIB:.1f}" for each in grown.values())))
        rows.append({**work.sizes.data, "requests": num_requests, "module_bytes": modules, "grown_bytes": grown})
    return Report(
        name="memory",
        title="MiB of resident memory that live requests add",
        columns=("modules MiB", "live requests", "prompt cache", "DynamicCache"),
        cells=tuple(cells),
        rows=tuple(rows),
    )


def _linked_cache(model: Model, work: Workload) -> Any:
    return link(work.tokens, work.runs, model).cache


def _prefilled(model: Model, work: Workload, cache: Any) -> Any:
    token_ids, position_ids = work.tokens.token_ids, work.tokens.position_ids
    last_logits(model, token_ids, position_ids, cache)
    return cache


def compare_batch(
    model: Model, sizes: Sizes, num_rows: int, num_tokens: int, repeats: int, progress: Progress = silent
) -> Report:
    """Measure decoding of rows that share modules: linked together, and as rows with copies of their own."""
    work = workload(model, sizes)
    options = {"do_sample": False, "min_new_tokens": num_tokens}
    pool = Pool(model.shape)  # as an engine's: from the second batch on, small modules were copied before

    def together() -> Any:
        batch = link_batch([work.tokens] * num_rows, work.runs, model, pool)
        return generate_together(model, batch, eos_ids=(), max_new_tokens=num_tokens, options=options)

    def copied() -> Any:
        return _generate_copies(model, work, num_rows, num_tokens)

    ways = {"own copies": copied, "prompt cache": together}
    samples = interleave(ways, repeats, model.device, partial(progress, sizes.title))
    speed = {name: num_rows * num_tokens / each.median for name, each in samples.items()}
    shared = sizes.cached_tokens * model.shape.token_bytes
    ratio = speed["prompt cache"] / speed["own copies"]
    return Report(
        name="batch",
        title=f"{num_rows} rows that share {sizes.cached_tokens:,} tokens: tokens/s, median of {repeats} rounds",
        columns=("own copies", "prompt cache", "ratio", "KV MiB, own copies", "KV MiB, shared"),
        cells=(
            (
                *(f"{each:.1f}" for each in speed.values()),
                f"{ratio:.1f}x",
                f"{num_rows * shared / MIB:.0f}",
                f"{shared / MIB:.0f}",
            ),
        ),
        rows=(
            {
                **sizes.data,
                "rows": num_rows,
                "decoded_tokens": num_tokens,
                "seconds": {name: list(each.seconds) for name, each in samples.items()},
            },
        ),
    )


def compare_encoding(model: Model, all_sizes: Sequence[Sizes], repeats: int, progress: Progress = silent) -> Report:
    """Measure encoding a schema's modules against plain prefill of equally long texts, in tokens per second."""
    cells, rows = [], []
    for sizes in all_sizes:
        needed = workload(model, sizes).state.encodings[: sizes.num_modules]
        texts = [token_tensor(each.token_ids, model.device) for each in needed]

        def encoded(needed: Any = needed) -> Any:
            return Executor(model, MemoryStore(model.shape), lambda: "bench").fetch(needed)

        ways: dict[str, Callable[[], Any]] = {"plain": partial(_prefill_all, model, texts), "encode": encoded}
        samples = interleave(ways, repeats, model.device, partial(progress, sizes.title))
        speed = {name: sizes.cached_tokens / each.median for name, each in samples.items()}
        cells.append(
            (
                f"{sizes.num_modules} x {sizes.module_tokens}",
                *(f"{each:,.0f}" for each in speed.values()),
                f"{speed['encode'] / speed['plain']:.2f}",
            )
        )
        rows.append({**sizes.data, "seconds": {name: list(each.seconds) for name, each in samples.items()}})
    return Report(
        name="encode",
        title=f"Tokens per second, median of {repeats} rounds",
        columns=("modules", "plain prefill", "encode", "ratio"),
        cells=tuple(cells),
        rows=tuple(rows),
    )


def measure_planning(num_modules: Sequence[int], num_named: int, repeats: int, progress: Progress = silent) -> Report:
    """Measure parsing, checking and planning a prompt of `num_named` modules, in schemas of different sizes.

    Where a schema has fewer, the prompt names all of them.
    """
    cells, rows = [], []
    for total in num_modules:
        draw = random.Random(0)
        modules = "".join(f'<module name="m{index}">{letters(draw, 16)}</module>' for index in range(total))
        schema = check_schema(parse_schema(f'<schema name="s">{modules}</schema>'))
        catalog = Catalog(_Nowhere(), lambda encoding: encoding.digest)
        catalog.add(schema_state(schema, LetterTokenizer(), 10**9))
        planner = Planner(catalog, LetterTokenizer())
        count = min(num_named, total)
        named = "".join(f"<m{index * total // count}/>" for index in range(count))
        text = f'<prompt schema="s">{named}{letters(draw, 30)}</prompt>'

        def cold(planner: Planner = planner, catalog: Catalog = catalog, text: str = text) -> Any:
            state = catalog.find("s")
            return state.plan(resolve_prompt(parse_prompt(text), state.schema), LetterTokenizer())

        works: dict[str, Callable[[], Any]] = {"first": cold, "again": partial(planner.plan, text)}
        samples = interleave(works, repeats, torch.device("cpu"), partial(progress, f"{total:,} modules"))
        cells.append((f"{total:,}", str(count), *(f"{1e3 * each.median:.3f}" for each in samples.values())))
        rows.append({"modules": total, "named": count, "seconds": {k: list(v.seconds) for k, v in samples.items()}})
    return Report(
        name="plan",
        title=f"ms to parse, check and plan a prompt, median of {repeats} rounds",
        columns=("modules in schema", "named", "first time", "same text again"),
        cells=tuple(cells),
        rows=tuple(rows),
    )


class _Nowhere(MemoryStore):
    """A store that nothing is put into: planning needs none."""

    def __init__(self) -> None:
        pass

    def reserve(self, sizes: Sequence[tuple[str, int]]) -> None:
        """Take no notice."""


@torch.no_grad()
def _prefill_all(model: Model, texts: Sequence[torch.Tensor]) -> None:
    for token_ids in texts:
        model.hf.base_model(input_ids=token_ids, past_key_values=DynamicCache(), use_cache=True)


def _generate_copies(model: Model, work: Workload, num_rows: int, num_tokens: int) -> Any:
    linked = link(work.tokens, work.runs, model)
    cache: Any = concatenated_cache(model, work)
    cache.batch_repeat_interleave(num_rows)
    seen = linked.positions.num_cached + len(linked.token_ids)
    return model.hf.generate(
        token_tensor(linked.token_ids, model.device).expand(num_rows, -1),
        position_ids=token_tensor(linked.position_ids, model.device).expand(num_rows, -1),
        attention_mask=torch.ones((num_rows, seen), dtype=torch.long, device=model.device),
        past_key_values=cache,
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        do_sample=False,
        pad_token_id=0,
    )
