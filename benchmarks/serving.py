"""The benchmark of serving: `python -m benchmarks serve`.

Targets answer the same requests: one request at a time, the scheduler, and servers over HTTP. In each round all targets
are measured one after another, every second round in the opposite order. CPU time is measured beside wall time, because
machines are shared.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeAlias

import torch

from benchmarks.common import BenchReport
from benchmarks.intervals import ratio_of_sums
from benchmarks.load import (
    AnswerTimes,
    Ask,
    LoadRequest,
    ServedRequest,
    TargetName,
    closed_loop,
    draw_requests,
    open_loop,
    poisson_arrivals,
)
from benchmarks.targets import TARGETS, LoadSetup, Target, missing
from promptcache.diagnostics import PromptCacheError
from promptcache.progress import Progress, silent

_BASES: Mapping[TargetName, TargetName] = {
    TargetName.ONE_AT_A_TIME: TargetName.SCHEDULER,
    TargetName.HTTP: TargetName.SCHEDULER,
    TargetName.RAY: TargetName.HTTP,
    TargetName.TRANSFORMERS: TargetName.HTTP,
    TargetName.TRANSFORMERS_BATCHES: TargetName.HTTP,
    TargetName.LLAMA: TargetName.HTTP,
}
"""The target that each target is compared with."""

_ROUNDS_OF_INTERVALS = 3
"""Fewer rounds have no interval."""

_TICK_S = 0.01
"""Resolution of the CPU time of another process."""

_IDLE: Mapping[str, Any] = {"clients": 1}

_COLUMNS = (
    *("load", "target", "s (CPU)", "requests/s (CPU)", "tokens/s (CPU)"),
    *("TTFT p50, p90, p99, ms", "p99 / idle", "token, ms", "CPU of a request", "errors"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """Settings of a measurement.

    Attributes:
        clients: Numbers of clients in closed loops. One client is always measured: its server is idle before a request.
        loads: Shares of the capacity at which requests arrive in open loops.
        num_requests: Requests of each client in one round.
        repeats: Rounds that count. One request of each client warms up.
    """

    targets: Sequence[TargetName]
    clients: Sequence[int]
    loads: Sequence[float]
    num_requests: int
    repeats: int
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRound:
    """One round of one target: seconds by the clock and of the processor, and its requests."""

    wall_s: float
    cpu_s: float
    served: tuple[ServedRequest, ...]

    @property
    def answered(self) -> tuple[ServedRequest, ...]:
        """The requests that did not fail."""
        return tuple(each for each in self.served if each.error is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadFigures:
    """Figures of one target at one load, over all rounds. Those of tokens and times leave out requests that failed.

    Attributes:
        ttft_s: Its quantiles 0.5, 0.9 and 0.99.
        token_s: Median time of each token after the first.
    """

    wall_s: float
    cpu_s: float
    requests_per_s: float
    requests_per_cpu_s: float
    tokens_per_s: float
    tokens_per_cpu_s: float
    ttft_s: tuple[float, ...]
    token_s: float
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCase:
    """All rounds of one target at one load; `data` describes the load for JSON."""

    load: str
    data: Mapping[str, Any]
    target: TargetName
    rounds: tuple[LoadRound, ...]


_Send: TypeAlias = Callable[[TargetName, Sequence[LoadRequest]], tuple[ServedRequest, ...]]


def compare_serving(setup: LoadSetup, settings: LoadSettings, progress: Progress = silent) -> BenchReport:
    """Measure the targets in closed loops, and at shares of the capacity that was measured there."""
    has_llama = setup.llama is not None
    skipped = {name: reason for name in settings.targets if (reason := missing(name, has_llama=has_llama)) is not None}
    with ExitStack() as running:
        targets: dict[TargetName, Target] = {}
        for name in settings.targets:
            if name not in skipped:
                progress(f"starting {name}", 0, None)
                target = running.enter_context(TARGETS[name](setup))
                targets[name] = target._replace(ask=partial(_whole_answer, target.ask, setup.sizes.answer_tokens))
        cases = _measure(setup, settings, targets, progress)
    rows = [_row(case, cases) for case in cases]
    return BenchReport(
        name="serve",
        title="The same requests for each target; (CPU): for each second of its processor time",
        columns=_COLUMNS,
        cells=(
            *(_cells(case, row) for case, row in zip(cases, rows, strict=True)),
            *(("", name, f"not measured: {reason}", *[""] * (len(_COLUMNS) - 3)) for name, reason in skipped.items()),
        ),
        rows=(
            {**asdict(setup.sizes), "sampled": setup.is_sampled, "seed": settings.seed, "skipped": skipped},
            *rows,
        ),
    )


def _whole_answer(ask: Ask, num_tokens: int, request: LoadRequest) -> AnswerTimes:
    """Send a request; an answer of another length is an error, because it is less or more work."""
    times = ask(request)
    if times.error is None and times.num_tokens != num_tokens:
        return times._replace(error=f"the answer has {times.num_tokens} tokens, not {num_tokens}")
    return times


def _measure(
    setup: LoadSetup, settings: LoadSettings, targets: Mapping[TargetName, Target], progress: Progress
) -> list[LoadCase]:
    counts = sorted({1, *settings.clients})
    draw = partial(draw_requests, sizes=setup.sizes, tokenize=setup.engine.tokenizer.tokenize)
    for name, target in targets.items():
        progress(f"warming up {name}", 0, None)
        requests = draw(f"{settings.seed} warm", counts[-1])
        _round(name, target, partial(closed_loop, target.ask, requests, counts[-1]))
    cases: list[LoadCase] = []

    def measure(load: str, data: Mapping[str, Any], num_requests: int, send: _Send) -> None:
        rounds: dict[TargetName, list[LoadRound]] = {name: [] for name in targets}
        for number in range(settings.repeats):
            progress(load, number, settings.repeats)
            requests = draw(f"{settings.seed} {load} {number}", num_requests)
            for name in [*targets][:: -1 if number % 2 else 1]:
                rounds[name].append(_round(name, targets[name], partial(send, name, requests)))
        cases.extend(LoadCase(load=load, data=data, target=name, rounds=tuple(each)) for name, each in rounds.items())

    for count in counts:

        def closed(name: TargetName, requests: Sequence[LoadRequest], count: int = count) -> tuple[ServedRequest, ...]:
            return closed_loop(targets[name].ask, requests, count)

        measure(f"{count} client{'s' * (count > 1)}", {"clients": count}, count * settings.num_requests, closed)
    capacity = {
        name: max(load_figures(case.rounds).requests_per_s for case in cases if case.target == name) for name in targets
    }
    for share in settings.loads:

        def opened(
            name: TargetName, requests: Sequence[LoadRequest], share: float = share
        ) -> tuple[ServedRequest, ...]:
            arrivals = poisson_arrivals(f"{requests[0].seed}", len(requests), share * capacity[name])
            return open_loop(targets[name].ask, requests, arrivals)

        measure(f"{share:.0%} of capacity", {"share": share}, counts[-1] * settings.num_requests, opened)
    return cases


def _round(name: TargetName, target: Target, send: Callable[[], tuple[ServedRequest, ...]]) -> LoadRound:
    target.forget()
    gc.collect()
    wall, cpu = time.perf_counter(), target.cpu_s()
    served = send()
    wall_s, cpu_s = time.perf_counter() - wall, max(_TICK_S, target.cpu_s() - cpu)
    made = LoadRound(wall_s=wall_s, cpu_s=cpu_s, served=served)
    if not made.answered:
        raise PromptCacheError(f"{name} answers no request: {served[0].error}")
    return made


def load_figures(rounds: Sequence[LoadRound]) -> LoadFigures:
    """Return the figures of all rounds of one target at one load. Each round has an answer."""
    answered = [request for each in rounds for request in each.answered]
    wall_s, cpu_s = sum(each.wall_s for each in rounds), sum(each.cpu_s for each in rounds)
    num_tokens = sum(each.num_tokens for each in answered)
    ttft = torch.tensor([each.ttft_s for each in answered], dtype=torch.float64)
    return LoadFigures(
        wall_s=wall_s,
        cpu_s=cpu_s,
        requests_per_s=len(answered) / wall_s,
        requests_per_cpu_s=len(answered) / cpu_s,
        tokens_per_s=num_tokens / wall_s,
        tokens_per_cpu_s=num_tokens / cpu_s,
        ttft_s=tuple(ttft.quantile(torch.tensor([0.5, 0.9, 0.99], dtype=torch.float64)).tolist()),
        token_s=statistics.median(each.token_s for each in answered),
        errors=tuple(request.error for each in rounds for request in each.served if request.error is not None),
    )


def _row(case: LoadCase, cases: Sequence[LoadCase]) -> dict[str, Any]:
    """Return the figures of a case with its ratios, and its rounds."""
    made = load_figures(case.rounds)
    (idle,) = (load_figures(each.rounds) for each in cases if each.target == case.target and each.data == _IDLE)
    base = None if "share" in case.data else _BASES.get(case.target)  # rates differ there
    others = next((each.rounds for each in cases if each.load == case.load and each.target == base), None)
    return {
        "load": case.data,
        "target": case.target,
        **asdict(made),
        "ttft_p99_over_idle": made.ttft_s[-1] / idle.ttft_s[0],
        "cpu_ratio": None if others is None else {"over": base, "ratio": cpu_ratio(case.rounds, others)},
        "rounds": [
            {
                "wall_seconds": each.wall_s,
                "cpu_seconds": each.cpu_s,
                "requests": [[one.ttft_s, one.token_s, one.num_tokens] for one in each.answered],
            }
            for each in case.rounds
        ],
    }


def cpu_ratio(rounds: Sequence[LoadRound], others: Sequence[LoadRound]) -> tuple[float, float, float]:
    """Return the CPU time of a request over that of another target, with its paired 95 % interval over rounds."""
    first, second = ([each.cpu_s / len(each.answered) for each in side] for side in (rounds, others))
    return ratio_of_sums(first, second)


def _cells(case: LoadCase, row: Mapping[str, Any]) -> tuple[str, ...]:
    def both(name: str) -> str:
        return f"{row[f'{name}_per_s']:.2f} ({row[f'{name}_per_cpu_s']:.2f})"

    return (
        case.load,
        case.target,
        f"{row['wall_s']:.1f} ({row['cpu_s']:.1f})",
        both("requests"),
        both("tokens"),
        ", ".join(f"{1e3 * each:,.0f}" for each in row["ttft_s"]),
        f"{row['ttft_p99_over_idle']:.1f}",
        f"{1e3 * row['token_s']:.1f}",
        _shown_ratio(row["cpu_ratio"], len(case.rounds)),
        str(len(row["errors"])),
    )


def _shown_ratio(found: Mapping[str, Any] | None, num_rounds: int) -> str:
    if found is None:
        return ""
    ratio, low, high = found["ratio"]
    interval = f" ({low:.2f} to {high:.2f})" if num_rounds >= _ROUNDS_OF_INTERVALS else ""
    return f"{ratio:.2f}{interval} x {found['over']}"
