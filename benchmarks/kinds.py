"""The benchmark of kinds of KV caches: `python -m benchmarks kinds`.

Every kind serves the same request through transformers' `generate`: cached tokens, whose KV must stay as it is for the
next request, and new tokens. CPU time is measured beside wall time, because machines are shared.
"""

from __future__ import annotations

import copy
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from transformers import DynamicCache, StaticCache

from benchmarks.intervals import ratio_of_medians
from promptcache.bench.alternatives import last_logits
from promptcache.bench.harness import BenchReport, Progress, silent
from promptcache.bench.workload import Sizes, Workload, workload
from promptcache.runtime import Model, generate, link, token_tensor

MAX_UNCACHED = 1_000
"""Without a cache every token computes the whole prompt again; longer prompts are not measured without one."""

_BASELINE = "DynamicCache"


class AnswerCost(NamedTuple):
    """Seconds of an answer, by the clock and of the processor (all threads)."""

    ttft_s: float
    ttft_cpu_s: float
    decode_s: float  # of each token after the first
    decode_cpu_s: float


class TimedAnswer(NamedTuple):
    """New tokens of the request, and their cost."""

    token_ids: tuple[int, ...]
    cost: AnswerCost


CacheKind: TypeAlias = Callable[[], TimedAnswer]


def compare_kinds(
    model: Model,
    cached_tokens: Sequence[int],
    new_tokens: int,
    num_tokens: int,
    repeats: int,
    progress: Progress = silent,
) -> BenchReport:
    """Compare TTFT and decoding without a cache, with two caches of transformers, and with Prompt Cache.

    Args:
        cached_tokens: Sizes of the module that the request reuses; 0 is a request without a module.
        new_tokens: Tokens of the request's own text.
        num_tokens: Tokens of the answer, at least 2.
        repeats: Rounds that count; one more warms up.
    """
    cells, rows = [], []
    for num_cached in cached_tokens:
        sizes = Sizes(num_modules=min(num_cached, 1), module_tokens=num_cached, new_tokens=new_tokens, adjacent=True)
        costs = _interleave(kinds(model, sizes, num_tokens), repeats, partial(progress, f"{num_cached:,} cached"))
        ratios = {name: _cpu_ratio(costs, name) for name in costs}
        cells += [
            (
                f"{num_cached:,}",
                name,
                *(f"{1e3 * _median(each, field):.2f}" for field in AnswerCost._fields),
                _shown(ratios[name]),
            )
            for name, each in costs.items()
        ]
        taken = {field: {name: [cost[at] for cost in each] for name, each in costs.items()} for at, field in _FIELDS}
        rows.append(
            {
                **sizes.data,
                "decoded_tokens": num_tokens,
                "seconds": taken["decode_s"],
                "cpu_seconds": taken["decode_cpu_s"],
                "ttft_seconds": taken["ttft_s"],
                "ttft_cpu_seconds": taken["ttft_cpu_s"],
                "cpu_ratio": ratios,
            }
        )
    return BenchReport(
        name="kinds",
        title=f"TTFT and time of each later token in ms, median of {repeats} rounds",
        columns=("cached", "kind", "TTFT", "TTFT CPU", "token", "token CPU", f"token CPU / {_BASELINE}"),
        cells=tuple(cells),
        rows=tuple(rows),
    )


def kinds(model: Model, sizes: Sizes, num_tokens: int) -> dict[str, CacheKind]:
    """Return the kinds of caches that are compared at this size. Each call serves the request once."""
    work = workload(model, sizes)
    cached_ids = [token_id for part in work.tokens.parts for token_id in part.token_ids]
    capacity = sizes.cached_tokens + sizes.new_tokens + num_tokens
    caches: dict[str, Any] = {
        _BASELINE: DynamicCache(),
        "StaticCache": StaticCache(config=model.hf.config, max_cache_len=capacity),
    }
    if cached_ids:
        with stock_attention(model):
            for cache in caches.values():
                last_logits(model, cached_ids, range(len(cached_ids)), cache)
    if sizes.cached_tokens <= MAX_UNCACHED:
        caches = {"no cache": None, **caches}
    token_ids = token_tensor([*cached_ids, *work.tokens.token_ids], model.device)
    stock = {name: partial(_stock, model, token_ids, cache, num_tokens) for name, cache in caches.items()}
    return {**stock, "prompt cache": partial(_linked, model, work, num_tokens)}


def _stock(model: Model, token_ids: torch.Tensor, cache: Any, num_tokens: int) -> TimedAnswer:
    """Serve the request as transformers documents it: all tokens, and a deep copy of a filled cache or none."""
    with stock_attention(model):
        clock = Clock()
        held = {"use_cache": False} if cache is None else {"past_key_values": copy.deepcopy(cache)}
        made = model.hf.generate(
            token_ids,
            attention_mask=torch.ones_like(token_ids),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
            streamer=clock,
            **held,
        )
    return TimedAnswer(tuple(made[0, token_ids.shape[1] :].tolist()), clock.cost())


def _linked(model: Model, work: Workload, num_tokens: int) -> TimedAnswer:
    """Serve the request with Prompt Cache, after planning and fetching."""
    clock = Clock()
    linked = link(work.tokens, work.handles, model)
    options = {"do_sample": False, "min_new_tokens": num_tokens, "streamer": clock}
    made = generate(model, linked, eos_ids=_ends(model), max_new_tokens=num_tokens, options=options)
    return TimedAnswer(made.sequences[0], clock.cost())


def _ends(model: Model) -> Sequence[int]:
    """Return the end tokens that `generate` of transformers takes from the model's configuration."""
    ends = model.hf.generation_config.eos_token_id
    return ends if isinstance(ends, list) else () if ends is None else (ends,)


@contextmanager
def stock_attention(model: Model) -> Iterator[None]:
    """Give the model transformers' own attention for a while."""
    installed = model.hf.config._attn_implementation
    model.hf.set_attn_implementation(installed.removeprefix("promptcache_"))
    try:
        yield
    finally:
        model.hf.set_attn_implementation(installed)


class Clock:
    """A streamer of `generate` that reads the time at the start and at each token."""

    def __init__(self) -> None:
        self._read = [now()]

    def put(self, _value: torch.Tensor) -> None:
        """Read the time; the first call brings the prompt's tokens."""
        self._read.append(now())

    def end(self) -> None:
        """Called by `generate` at the end."""

    def cpu_s(self) -> float:
        """Return the seconds of the processor from the start to the last token."""
        return self._read[-1][1] - self._read[0][1]

    def cost(self) -> AnswerCost:
        """Return the cost of the answer."""
        (wall, cpu), _prompt, (first_wall, first_cpu), *_, (last_wall, last_cpu) = self._read
        steps = len(self._read) - 3
        return AnswerCost(
            ttft_s=first_wall - wall,
            ttft_cpu_s=first_cpu - cpu,
            decode_s=(last_wall - first_wall) / steps,
            decode_cpu_s=(last_cpu - first_cpu) / steps,
        )


def now() -> tuple[float, float]:
    """Return the time by the clock and of the processor (all threads), in seconds."""
    return time.perf_counter(), time.process_time()


def _interleave(
    runs: Mapping[str, CacheKind], repeats: int, progress: Callable[[int, int], None]
) -> dict[str, list[AnswerCost]]:
    """Run all kinds in each round, in random order; the first round does not count."""
    taken: dict[str, list[AnswerCost]] = {name: [] for name in runs}
    order = random.Random(0)
    for number in range(repeats + 1):
        progress(number, repeats + 1)
        for name in order.sample([*runs], len(runs)):
            gc.collect()
            taken[name].append(runs[name]().cost)
    return {name: costs[1:] for name, costs in taken.items()}


_FIELDS = tuple(enumerate(AnswerCost._fields))


def _median(costs: Sequence[AnswerCost], field: str) -> float:
    return float(statistics.median(getattr(cost, field) for cost in costs))


def _cpu_ratio(costs: Mapping[str, Sequence[AnswerCost]], name: str) -> tuple[float, float, float]:
    """Return the CPU time of a token over that with `DynamicCache`, and its 95 % interval."""
    first, second = ([cost.decode_cpu_s for cost in costs[each]] for each in (name, _BASELINE))
    return ratio_of_medians(first, second)


def _shown(ratio: tuple[float, float, float]) -> str:
    return "{:.2f} ({:.2f} to {:.2f})".format(*ratio)
