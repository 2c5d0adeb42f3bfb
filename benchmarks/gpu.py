"""The benchmark of a GPU: `python -m benchmarks gpu`.

It measures TTFT, decoding and many clients with ordinary prefill, with a compiled `StaticCache`, and with Prompt Cache
on both attention backends. What does not fit into the memory of the device is reported as such.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import DynamicCache, StaticCache

from benchmarks.common import (
    BenchReport,
    CharacterTokenizer,
    RequestTexts,
    Sizes,
    documents,
    last_logits,
    stock_attention,
)
from benchmarks.load import LoadSizes, TargetName, closed_loop, draw_requests
from benchmarks.targets import TARGETS, load_setup, shape_tokenizer
from promptcache.attention import Kernels
from promptcache.decode import Completion
from promptcache.engine import Engine
from promptcache.model import Model
from promptcache.progress import Progress, silent


class _Contender(NamedTuple):
    """An alternative: how it is made, and the context in which it is made and run.

    What is made does the work once and returns its seconds.
    """

    make: Callable[[], Callable[[], float]]
    context: Callable[[], AbstractContextManager[None]]


NO_MEMORY = "out of memory"
PLAIN, STATIC, TORCH, TRITON = "plain", "StaticCache, compiled", "ours, PyTorch's kernels", "ours, Triton and graphs"
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

    TTFT counts from a planned request whose KV is in memory. `generate` of an engine reports its steps.

    Args:
        new_tokens: Numbers of new tokens of a request, for TTFT.
        num_clients: Rows of the decoded batch, and clients of the service.
        num_tokens: Tokens of each answer.
        repeats: Runs that count; one more warms up. Plain batches run once.
    """
    rows: list[Mapping[str, Any]] = []

    def measure(what: str, data: Mapping[str, Any], ways: Mapping[str, _Contender]) -> None:
        for name, way in ways.items():
            progress(f"{what}: {name}", 0, None)
            rows.append({"what": what, **data, "name": name, "seconds": _seconds(way, repeats)})

    for num_new in new_tokens:
        sizes = Sizes(num_modules=num_modules, module_tokens=module_tokens, new_tokens=num_new)
        measure("ttft", sizes.data, _ttft(model, documents(sizes)))
    sizes = Sizes(num_modules=num_modules, module_tokens=module_tokens, new_tokens=1)
    for num_rows in (1, num_clients):
        measure("decode", {**sizes.data, "rows": num_rows}, _decoding(model, documents(sizes), num_tokens, num_rows))
    sizes = Sizes(num_modules=num_modules, module_tokens=module_tokens, new_tokens=12)
    for name, kernels in ((TORCH, Kernels.TORCH), (TRITON, Kernels.GRAPHS)):
        progress(f"clients: {name}", 0, None)
        with _kernels(model, kernels):
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


def _ttft(model: Model, texts: RequestTexts) -> dict[str, _Contender]:
    def ours() -> Callable[[], float]:
        answer = _answerer(model, texts)
        return lambda: _prefill_s(*answer(1, 1))

    return {**_stock(model, partial(_plain, model, texts), partial(_static, model, texts)), **_ours(model, ours)}


def _decoding(model: Model, texts: RequestTexts, num_tokens: int, num_rows: int) -> dict[str, _Contender]:
    def ours() -> Callable[[], float]:
        answer = _answerer(model, texts)
        return lambda: max(each.timing.decode_s for each in answer(num_rows, num_tokens + 1)) / num_tokens

    stock = (partial(make, model, texts, num_tokens, num_rows) for make in (_decode_dynamic, _decode_static))
    return {**_stock(model, *stock), **_ours(model, ours)}


def _answerer(model: Model, texts: RequestTexts) -> Callable[[int, int], Sequence[Completion]]:
    """Return a function that answers the same prompt in several rows together, from an engine without history."""
    engine = Engine(model, CharacterTokenizer(), history=False)
    engine.add_schema(texts.schema)

    def answer(num_rows: int, num_tokens: int) -> Sequence[Completion]:
        options: dict[str, Any] = {"max_new_tokens": num_tokens, "min_new_tokens": num_tokens, "do_sample": False}
        if num_rows == 1:
            return [engine.generate(texts.prompt, **options)]
        return engine.generate_batch([texts.prompt] * num_rows, **options)

    return answer


def _prefill_s(answer: Completion) -> float:
    return answer.timing.link_s + answer.timing.prefill_s


def _stock(model: Model, plain: Callable[[], Any], static: Callable[[], Any]) -> dict[str, _Contender]:
    context = partial(stock_attention, model)
    return {PLAIN: _Contender(plain, context), STATIC: _Contender(static, context)}


def _ours(model: Model, make: Callable[[], Callable[[], float]]) -> dict[str, _Contender]:
    kinds = {TORCH: Kernels.TORCH, TRITON: Kernels.GRAPHS}
    return {name: _Contender(make, partial(_kernels, model, kernels)) for name, kernels in kinds.items()}


def _timed(run: Callable[[], object]) -> float:
    _synchronize()
    started = time.perf_counter()
    run()
    _synchronize()
    return time.perf_counter() - started


def _plain(model: Model, texts: RequestTexts) -> Callable[[], float]:
    token_ids = CharacterTokenizer().tokenize(texts.modules + texts.new)
    return lambda: _timed(lambda: last_logits(model, token_ids, DynamicCache()))


def _static(model: Model, texts: RequestTexts) -> Callable[[], float]:
    """Prefill the new tokens in the pass that transformers compiles, over a `StaticCache` that has the modules."""
    new = CharacterTokenizer().tokenize(texts.new)
    cache = _filled_static(model, texts, len(new))
    forward = _compiled_forward(model)

    def run() -> float:
        taken = _timed(lambda: last_logits(model, new, cache, forward).clone())
        _shorten(cache, len(new))
        return taken

    return run


def _decode_dynamic(model: Model, texts: RequestTexts, num_tokens: int, num_rows: int) -> Callable[[], float]:
    """Decode rows of a `DynamicCache`, each of which holds all KV of its own."""
    single, cache = _filled(model, texts), DynamicCache()
    for layer, each in enumerate(single.layers):
        cache.update(*(states.repeat(num_rows, 1, 1, 1) for states in (each.keys, each.values)), layer)
    return _decode_rows(model, num_tokens, num_rows, cache, model.hf, lambda: cache.crop(-num_tokens))


def _decode_static(model: Model, texts: RequestTexts, num_tokens: int, num_rows: int) -> Callable[[], float]:
    """Decode rows of a `StaticCache` in the pass that transformers compiles."""
    cache = _filled_static(model, texts, num_tokens, num_rows)
    return _decode_rows(
        model, num_tokens, num_rows, cache, _compiled_forward(model), partial(_shorten, cache, num_tokens)
    )


def _filled(model: Model, texts: RequestTexts) -> Any:
    cache: Any = DynamicCache()
    last_logits(model, CharacterTokenizer().tokenize(texts.modules), cache)
    return cache


def _filled_static(model: Model, texts: RequestTexts, num_more: int, num_rows: int = 1) -> Any:
    """Return a `StaticCache` with the KV of the modules in each row, and room for more tokens."""
    cache: Any = StaticCache(config=model.hf.config, max_cache_len=len(texts.modules) + num_more)
    for layer, each in enumerate(_filled(model, texts).layers):
        cache.update(*(states.repeat(num_rows, 1, 1, 1) for states in (each.keys, each.values)), layer)
    return cache


def _shorten(cache: Any, num_tokens: int) -> None:
    """Drop the last tokens of a `StaticCache` whose layers have no windows, by one kernel for all layers."""
    torch._foreach_sub_([layer.cumulative_length for layer in cache.layers], num_tokens)


def _compiled_forward(model: Model) -> Callable[..., Any]:
    """Return the compiled forward pass that `generate` of transformers decodes with on a GPU."""
    forward: Callable[..., Any] = model.hf.get_compiled_call(model.hf.generation_config.compile_config)
    return forward


def _decode_rows(
    model: Model,
    num_tokens: int,
    num_rows: int,
    cache: Any,
    forward: Callable[..., Any],
    shorten: Callable[[], object],
) -> Callable[[], float]:
    token_ids = torch.full((num_rows, 1), ord("a"), device=model.device)
    first = int(cache.get_seq_length())

    @torch.no_grad()
    def decode() -> None:
        for position in range(first, first + num_tokens):
            positions = torch.full((num_rows, 1), position, device=model.device)
            forward(input_ids=token_ids, position_ids=positions, past_key_values=cache, logits_to_keep=1).logits.clone()

    def run() -> float:
        taken = _timed(decode) / num_tokens
        shorten()
        return taken

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
        setup = load_setup(
            engine, Path(scratch), load, seed=0, is_sampled=False, scratch=Path(scratch), most_clients=num_clients
        )
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
    run: Callable[[], float] | None = None
    try:
        with way.context():
            run = way.make()
            taken = [run() for _ in range(repeats + 1)]
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
def _kernels(model: Model, kernels: Kernels) -> Iterator[None]:
    """Compute attention by these kernels, whatever is faster here."""
    before, model.kernels = model.kernels, kernels
    try:
        yield
    finally:
        model.kernels = before
