"""The benchmark of a GPU: `python -m benchmarks gpu`.

It measures TTFT, decoding and many clients with plain prefill, with a compiled `StaticCache` and with Prompt Cache on
both attention backends. What does not fit into the memory of the device is reported as such.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache, StaticCache

from benchmarks.kinds import stock_attention
from promptcache.bench.alternatives import (
    Alternative,
    cached,
    compiled,
    compiled_forward,
    concatenated_cache,
    decoding,
    decoding_compiled,
    decoding_concatenated,
    floor,
    plain,
)
from promptcache.bench.harness import BenchReport, Progress, silent
from promptcache.bench.load import LoadSizes, TargetName, closed_loop, draw_requests
from promptcache.bench.targets import TARGETS, load_setup, shape_tokenizer
from promptcache.bench.workload import Sizes, Workload, workload
from promptcache.engine import Engine
from promptcache.kv import MemoryStore
from promptcache.runtime import (
    Batch,
    Model,
    TritonBackend,
    open_graphs,
    open_pool,
    register_backend,
    unregister_backend,
)


class _Contender(NamedTuple):
    """An alternative: how it is made, and the context in which it is made and run. What is made does the work once."""

    make: Callable[[], Callable[[], object]]
    context: Callable[[], AbstractContextManager[None]]


NO_MEMORY = "out of memory"
PLAIN, STATIC, TORCH, TRITON = "plain", "StaticCache, compiled", "ours, PyTorch's kernels", "ours, Triton and graphs"
_A = ord("a")
_MAX_BATCHES_S = 60


def compare_on_gpu(
    model: Model,
    num_modules: int,
    module_tokens: int,
    new_tokens: Sequence[int],
    num_clients: int,
    num_tokens: int,
    repeats: int,
    progress: Progress = silent,
) -> BenchReport:
    """Measure TTFT, one decoded token, and many clients at once.

    Args:
        new_tokens: Numbers of new tokens of a request, for TTFT.
        num_clients: Rows of the decoded batch, and clients of the service.
        num_tokens: Tokens of each answer.
        repeats: Runs that count; one more warms up. Plain batches run once.
    """
    rows: list[Mapping[str, Any]] = []

    def measure(what: str, data: Mapping[str, Any], ways: Mapping[str, _Contender], per: int, repeats: int) -> None:
        for name, way in ways.items():
            progress(f"{what}: {name}", 0, None)
            seconds = _seconds(way, repeats)
            rows.append({"what": what, **data, "name": name, "seconds": seconds and [each / per for each in seconds]})

    for num_new in new_tokens:
        sizes = Sizes(num_modules=num_modules, module_tokens=module_tokens, new_tokens=num_new)
        measure("ttft", sizes.data, _ttft(model, workload(model, sizes)), 1, repeats)
    sizes = Sizes(num_modules=num_modules, module_tokens=module_tokens, new_tokens=1)
    work = workload(model, sizes)
    measure("decode", sizes.data, _decoding(model, work, num_tokens), num_tokens, repeats)
    batch = {**sizes.data, "rows": num_clients}
    measure("decode", batch, _decoding_rows(model, work, num_tokens, num_clients), num_tokens, repeats)
    del work
    sizes = Sizes(num_modules=num_modules, module_tokens=module_tokens, new_tokens=12)
    for name, context in ((TORCH, _torch_kernels), (TRITON, nullcontext)):
        progress(f"clients: {name}", 0, None)
        with context():
            rows.append({**sizes.data, "name": name, **_served(model, sizes, num_clients, num_tokens, repeats)})
    progress(f"clients: {PLAIN}", 0, None)
    rows.append({**sizes.data, "name": PLAIN, **_plain_batches(model, sizes, num_clients, num_tokens)})
    return BenchReport(
        name="gpu",
        title=f"Medians of {repeats} runs in ms; for clients, of TTFT and tokens per second",
        columns=("what", "cached", "new", "rows", "alternative", "ms", "tokens/s"),
        cells=tuple(map(_cells, rows)),
        rows=tuple(rows),
    )


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    seconds = row["seconds"]
    shown = NO_MEMORY if seconds is None else f"{1e3 * statistics.median(seconds):.2f}"
    speed = f"{row['tokens_per_s']:,.0f}" if row.get("tokens_per_s") else ""
    numbers = f"{row['cached_tokens']:,}", str(row["new_tokens"]), str(row.get("rows", 1))
    return row["what"], *numbers, row["name"], shown, speed


def _ttft(model: Model, work: Workload) -> dict[str, _Contender]:
    return {
        **_stock(model, partial(plain, model, work), partial(compiled, model, work)),
        "floor": _Contender(partial(floor, model, work), _torch_kernels),
        **_ours(partial(cached, model, work)),
    }


def _decoding(model: Model, work: Workload, num_tokens: int) -> dict[str, _Contender]:
    stock = partial(decoding_concatenated, model, work, num_tokens), partial(decoding_compiled, model, work, num_tokens)
    return {**_stock(model, *stock), **_ours(partial(decoding, model, work, num_tokens))}


def _decoding_rows(model: Model, work: Workload, *sizes: int) -> dict[str, _Contender]:
    stock = partial(_decoding_dynamic, model, work, *sizes), partial(_decoding_static, model, work, *sizes)
    return {**_stock(model, *stock), **_ours(partial(_decoding_batch, model, work, *sizes))}


def _stock(model: Model, plain: Callable[[], Alternative], static: Callable[[], Alternative]) -> dict[str, _Contender]:
    context = partial(stock_attention, model)
    return {PLAIN: _Contender(plain, context), STATIC: _Contender(static, context)}


def _ours(make: Callable[[], Alternative]) -> dict[str, _Contender]:
    return {TORCH: _Contender(make, _torch_kernels), TRITON: _Contender(make, nullcontext)}


def _decoding_batch(model: Model, work: Workload, num_tokens: int, num_rows: int) -> Alternative:
    """Decode rows over the same stored modules."""
    batch = Batch(model, open_pool(model, MemoryStore(model.shape)), open_graphs(model))
    rows = [batch.join(work.tokens, work.handles, model.state) for _ in range(num_rows)]
    for row in rows:
        batch.step([(row, work.tokens.token_ids)])

    def run() -> torch.Tensor:
        for _ in range(num_tokens):
            logits = batch.step([(row, [_A]) for row in rows])
        for row in rows:
            row.num_own -= num_tokens
        return logits

    return run


def _decoding_dynamic(model: Model, work: Workload, num_tokens: int, num_rows: int) -> Alternative:
    """Decode rows of a `DynamicCache`, each of which holds all KV of its own."""
    single = concatenated_cache(model, work)
    cache: Any = DynamicCache()
    for layer, each in enumerate(single.layers):
        cache.update(*(states.repeat(num_rows, 1, 1, 1) for states in (each.keys, each.values)), layer)
    return _decode_rows(model, work, num_tokens, num_rows, cache, model.hf, lambda: cache.crop(-num_tokens))


def _decoding_static(model: Model, work: Workload, num_tokens: int, num_rows: int) -> Alternative:
    """Decode rows of a `StaticCache` in the pass that transformers compiles."""
    single = concatenated_cache(model, work)
    cache: Any = StaticCache(config=model.hf.config, max_cache_len=work.sizes.cached_tokens + num_tokens)
    for layer, each in enumerate(single.layers):
        cache.update(*(states.repeat(num_rows, 1, 1, 1) for states in (each.keys, each.values)), layer)

    def shorten() -> None:
        torch._foreach_sub_([layer.cumulative_length for layer in cache.layers], num_tokens)

    return _decode_rows(model, work, num_tokens, num_rows, cache, compiled_forward(model), shorten)


def _decode_rows(
    model: Model,
    work: Workload,
    num_tokens: int,
    num_rows: int,
    cache: Any,
    forward: Callable[..., Any],
    shorten: Callable[[], object],
) -> Alternative:
    token_ids = torch.full((num_rows, 1), _A, device=model.device)
    first = work.tokens.position_ids[-1] + 1

    @torch.no_grad()
    def run() -> torch.Tensor:
        for position in range(first, first + num_tokens):
            positions = torch.full((num_rows, 1), position, device=model.device)
            made = forward(input_ids=token_ids, position_ids=positions, past_key_values=cache, logits_to_keep=1)
            logits: torch.Tensor = made.logits.clone()
        shorten()
        return logits

    return run


def _served(model: Model, sizes: Sizes, num_clients: int, num_tokens: int, repeats: int) -> Mapping[str, Any]:
    """Let clients send one request each to a service of an engine; all select all modules."""
    engine = Engine(model, shape_tokenizer(model.hf.config.vocab_size))
    load = LoadSizes(
        num_modules=sizes.num_modules,
        num_used=sizes.num_modules,
        module_tokens=sizes.module_tokens,
        new_tokens=sizes.new_tokens,
        answer_tokens=num_tokens,
    )
    with tempfile.TemporaryDirectory() as scratch:
        setup = load_setup(engine, Path(scratch), load, Path(scratch), is_sampled=False, seed=0)
        rounds = []
        with TARGETS[TargetName.SCHEDULER](setup) as target:
            for number in range(repeats + 1):
                requests = draw_requests(str(number), num_clients, load, engine.tokenizer.tokenize)
                started = time.perf_counter()
                served = closed_loop(target.ask, requests, num_clients)
                rounds.append((time.perf_counter() - started, served))
                errors = {each.error for each in served if each.error is not None}
                assert not errors, f"not every request is answered: {errors}"
                target.forget()
    counted = rounds[1:]
    return {
        "what": "clients",
        "rows": num_clients,
        "seconds": [each.ttft_s for each in chain.from_iterable(served for _, served in counted)],
        "tokens_per_s": num_clients * num_tokens / statistics.median(wall_s for wall_s, _ in counted),
    }


def _plain_batches(model: Model, sizes: Sizes, num_rows: int, num_tokens: int) -> Mapping[str, Any]:
    """Answer the same number of prompts by `generate` of transformers, in batches as large as fit. It runs once.

    No batch starts after a minute. `seconds` has the time of the first token of each batch, from the start of all.
    """
    num_prompt = sizes.cached_tokens + sizes.new_tokens
    size = num_rows
    with stock_attention(model):
        while True:
            try:
                started = time.perf_counter()
                firsts: list[float] = []
                while size * len(firsts) < num_rows and time.perf_counter() - started < _MAX_BATCHES_S:
                    firsts.append(_generate(model, size, num_prompt, num_tokens) - started)
                wall_s = time.perf_counter() - started
                break
            except torch.OutOfMemoryError:
                _free()
                if size == 1:
                    return {"what": "clients", "rows": num_rows, "seconds": None}
                size //= 2
    return {
        "what": "clients",
        "rows": num_rows,
        "batch": size,
        "seconds": firsts,
        "tokens_per_s": len(firsts) * size * num_tokens / wall_s,
    }


class _FirstTokenClock:
    """A streamer's clock: a criterion of `generate` that ends nothing and notes when the first token is there."""

    def __init__(self) -> None:
        self.at: float | None = None

    def __call__(self, token_ids: torch.Tensor, _scores: Any, **_more: Any) -> torch.Tensor:
        if self.at is None:
            _synchronize()
            self.at = time.perf_counter()
        return torch.zeros(len(token_ids), dtype=torch.bool, device=token_ids.device)


def _generate(model: Model, num_rows: int, num_prompt: int, num_tokens: int) -> float:
    """Answer `num_rows` prompts of random tokens; return when their first tokens were there."""
    token_ids = torch.randint(97, 123, (num_rows, num_prompt), device=model.device)
    first = _FirstTokenClock()
    model.hf.generate(
        token_ids,
        attention_mask=torch.ones_like(token_ids),
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        do_sample=False,
        pad_token_id=0,
        stopping_criteria=[first],
    )
    _synchronize()
    assert first.at is not None, "a token was generated"
    return first.at


def _seconds(way: _Contender, repeats: int) -> list[float] | None:
    """Return the seconds of each run that counts; None if the device has not enough memory."""
    taken = []
    run: Callable[[], object] | None = None
    try:
        with way.context():
            run = way.make()
            for _ in range(repeats + 1):
                _synchronize()
                started = time.perf_counter()
                result = run()
                _synchronize()
                taken.append(time.perf_counter() - started)
                del result
    except torch.OutOfMemoryError:
        taken = []
    run = None  # its memory is free before the next one is made
    _free()
    return taken[1:] or None


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _free() -> None:
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def _torch_kernels() -> Iterator[None]:
    """Leave the Triton kernels out."""
    unregister_backend(TritonBackend.name)
    try:
        yield
    finally:
        register_backend(TritonBackend())
