"""The benchmarks of first requests: `python -m benchmarks first` and `pairs`."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from transformers import DynamicCache

from benchmarks.common import BenchReport, last_logits, stock_attention
from benchmarks.first_process import STAGES
from promptcache.decode import Completion
from promptcache.diagnostics import ServiceError
from promptcache.engine import Engine
from promptcache.progress import Progress, silent, tracked

_Result = TypeVar("_Result")

_HOT = 3  # runs of a request that came before; their median counts
_MODULES, _USED = 5, (0, 2, 4)


def measure_stages(model: str, dtype: str, words: int, repeats: int, progress: Progress = silent) -> BenchReport:
    """Measure the stages up to the first token, each time in a new process.

    Args:
        words: Words of each module.
        repeats: Processes that count; one more warms up the files.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    runs: list[dict[str, float]] = []
    for _ in tracked(range(repeats + 1), progress, "first tokens", repeats + 1):
        command = [sys.executable, "-m", "benchmarks.first_process", str(time.monotonic()), model, dtype, str(words)]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise ServiceError(f"the process that is measured failed: {ended.stderr.strip().splitlines()[-1:]}")
        runs.append(json.loads(ended.stdout))
    for run in runs:
        run["all of these"] = sum(run[each] for each in STAGES)
    seconds = {each: [run[each] for run in runs[1:]] for each in (*STAGES, "all of these", "again")}
    return BenchReport(
        name="first",
        title=f"ms until the first token, median of {repeats} processes",
        columns=("stage", "ms"),
        cells=tuple((stage, _ms(each)) for stage, each in seconds.items()),
        rows=tuple({"stage": stage, "seconds": each} for stage, each in seconds.items()),
    )


def measure_pairs(engine: Engine, words: int, repeats: int, progress: Progress = silent) -> BenchReport:
    """Measure the first request with a combination of warm modules, and the same after `warm(pairs=True)`.

    Each round makes new engines, so that the combination is new each time.

    Args:
        engine: Without history.
        words: Words of each module.
        repeats: Rounds that count; one more warms up.
    """
    text = " ".join(f"word {number}" for number in range(max(1, words // 2)))
    modules = "".join(f'<module name="m{each}">{each}: {text}</module>' for each in range(_MODULES))
    prompt = f'<prompt schema="pairs">{"".join(f"<m{each}/>" for each in _USED)}What is the first word?</prompt>'

    def warm(*, pairs: bool) -> Callable[[], Completion]:
        fresh = Engine(engine.model, engine.tokenizer, history=False)
        fresh.add_schema(f'<schema name="pairs">{modules}</schema>')
        fresh.warm(pairs=pairs)
        return lambda: fresh.generate(prompt, max_new_tokens=1)

    new, plain, first, hot = (list[float]() for _ in range(4))
    for _ in tracked(range(repeats + 1), progress, "new combinations", repeats + 1):
        taken, answer = _timed(warm(pairs=False))
        new.append(taken)
        token_ids = answer.plan.tokens.used_ids[-answer.usage.num_encoded_tokens - answer.usage.num_new_tokens :]
        with stock_attention(engine.model):
            plain.append(_timed(partial(last_logits, engine.model, token_ids, DynamicCache()))[0])
        ask = warm(pairs=True)
        first.append(_timed(ask)[0])
        ask()  # joins the modules
        hot.append(statistics.median(_timed(ask)[0] for _ in range(_HOT)))
    compared = [
        _Compared("new", new[1:], f"ordinary prefill of {len(token_ids)} tokens", plain[1:], 1.25),
        _Compared("after warm(pairs=True)", first[1:], "hot", hot[1:], 1.1),
    ]
    return BenchReport(
        name="pairs",
        title=f"First request with a combination of warm modules, median ms of {repeats} rounds",
        columns=("request", "ms", "beside", "ms", "ratio", "bound"),
        cells=tuple(each.cells for each in compared),
        rows=tuple(each._asdict() for each in compared),
    )


class _Compared(NamedTuple):
    """Seconds of a request in each round, beside those of something else."""

    request: str
    seconds: list[float]
    beside: str
    other_seconds: list[float]
    bound: float

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        ratio = statistics.median(own / other for own, other in zip(self.seconds, self.other_seconds, strict=True))
        return self.request, _ms(self.seconds), self.beside, _ms(self.other_seconds), f"{ratio:.2f}", f"{self.bound}"


def _ms(seconds: Sequence[float]) -> str:
    return f"{1e3 * statistics.median(seconds):,.1f}"


def _timed(run: Callable[[], _Result]) -> tuple[float, _Result]:
    started = time.perf_counter()
    result = run()
    return time.perf_counter() - started, result
