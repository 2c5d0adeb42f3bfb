"""The benchmark of work in idle time: `python -m benchmarks idle`.

A service gets the same requests at the same random times, with and without promotions. Each
round has a new engine, whose modules are encoded and whose pairs are not.
"""

from __future__ import annotations

import random
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from promptcache.bench.harness import BenchReport, Progress, silent
from promptcache.bench.load import LoadSizes, TargetName, draw_requests, draw_text, open_loop, poisson_arrivals
from promptcache.bench.targets import TARGETS, LoadSetup
from promptcache.engine import Engine
from promptcache.runtime import PromoteMode


class IdleRound(NamedTuple):
    """One round: seconds to first token of its requests, in the order of arrival, and what was done in idle time."""

    ttft_s: tuple[float, ...]
    num_promoted_requests: int

    @property
    def p50_s(self) -> float:
        """The median."""
        return median(self.ttft_s)

    @property
    def p95_s(self) -> float:
        """The quantile 0.95."""
        return quantiles(self.ttft_s, n=20)[-1]


def compare_idle(
    engine: Engine, sizes: LoadSizes, rate: float, num_requests: int, repeats: int, progress: Progress = silent
) -> BenchReport:
    """Compare the time to first token with `promote="auto"` and "off".

    Args:
        engine: Its model and tokenizer are used, and not the engine.
        rate: Requests that arrive in a second, in the mean.
    """
    draw = random.Random(0)
    texts = tuple(draw_text(draw, sizes.module_tokens, engine.tokenizer.tokenize) for _ in range(sizes.num_modules))
    rounds: dict[str, list[IdleRound]] = {mode: [] for mode in PromoteMode}
    modes = [*rounds]
    for number in range(repeats):
        for place, mode in enumerate(modes if number % 2 else reversed(modes)):
            progress("rounds", 2 * number + place, 2 * repeats)
            rounds[mode].append(_round(engine, texts, sizes, rate, num_requests, f"{number}", mode))
    half = num_requests // 2
    cells: list[tuple[str, ...]] = [
        (
            mode,
            *(f"{1e3 * median(each.p50_s for each in found):.1f}", f"{1e3 * median(each.p95_s for each in found):.1f}"),
            f"{1e3 * median(median(each.ttft_s[half:]) for each in found):.1f}",
            f"{median(each.num_promoted_requests for each in found):.0f}",
        )
        for mode, found in rounds.items()
    ]
    ratios = {
        name: median(
            getattr(auto, name) / getattr(off, name)
            for auto, off in zip(rounds[PromoteMode.AUTO], rounds[PromoteMode.OFF], strict=True)
        )
        for name in ("p50_s", "p95_s")
    }
    cells.append(("auto / off, median", *(f"{each:.2f}" for each in ratios.values()), "", "", ""))
    return BenchReport(
        name="idle",
        title=f"{num_requests} requests, {rate:g} per second; medians of {repeats} rounds",
        columns=(
            *("promote", "TTFT p50, ms", "TTFT p95, ms", "p50 of the second half, ms"),
            "exact by promotion",
        ),
        cells=tuple(cells),
        rows=tuple(
            {"promote": mode, "rounds": [each._asdict() for each in found], "ratios": ratios}
            for mode, found in rounds.items()
        ),
    )


def _round(
    engine: Engine, texts: tuple[str, ...], sizes: LoadSizes, rate: float, count: int, seed: str, mode: str
) -> IdleRound:
    fresh = Engine(engine.model, engine.tokenizer, promote=mode, history_bytes=0)
    setup = LoadSetup(engine=fresh, folder=Path(), modules=texts, sizes=sizes, is_sampled=False, scratch=Path())
    fresh.add_schema(setup.schema_text)
    fresh.warm()
    requests = draw_requests(seed, count, sizes, engine.tokenizer.tokenize)
    with fresh, TARGETS[TargetName.SCHEDULER](setup) as target:
        served = open_loop(target.ask, requests, poisson_arrivals(seed, count, rate))
        stats = fresh.stats()
    assert not [each.error for each in served if each.error is not None], "no request fails"
    return IdleRound(tuple(each.ttft_s for each in served), stats.promotions.num_hits)
