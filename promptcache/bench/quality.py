"""`promptcache bench quality`: the cost of module reuse in quality, on questions with known answers.

Each document is served in every way with the same question, so all comparisons are paired. Ways are plain prefill,
`context="guaranteed"`, `context="own"`, a scaffold over all modules in use, and quantized KV. Answers are greedy. An
answer is right only as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from promptcache.bench.harness import BenchReport, Progress, Samples, interleave, silent
from promptcache.bench.intervals import mean_interval, paired_difference
from promptcache.bench.quality_answers import Chunk, Outcome, plain_answers
from promptcache.bench.quality_documents import CACHED, SETS, Way, all_ways
from promptcache.demo import Rate, draw_cases
from promptcache.engine import Engine

_CHUNK = 16  # documents whose KV is in memory at one time


@dataclass(frozen=True, slots=True, kw_only=True)
class QualitySettings:
    """Settings of the quality benchmark.

    Attributes:
        sets: Names in `SETS`.
        count: Questions of each set, each about its own document.
        seed: Seed of the documents and questions.
        ways: Ways to compare. Plain prefill and the ways they are compared with are added.
        instruction: Text at the start of each document, for models that need an instruction.
        max_new_tokens: Limit of an answer; a longer answer is wrong.
        repeats: Rounds of the measurement of TTFT, on one document of each set.
    """

    sets: Sequence[str]
    count: int
    seed: int
    ways: Sequence[Way] = CACHED
    instruction: str = ""
    max_new_tokens: int = 48
    repeats: int = 10


def compare_quality(engine: Engine, settings: QualitySettings, progress: Progress = silent) -> BenchReport:
    """Ask all questions in every way and return shares of right answers and distances with 95 % intervals.

    The intervals are Wilson's for shares, Newcombe's for paired differences of shares, and the bootstrap over questions
    for distances. `progress` counts the questions of a set, then the rounds of TTFT.
    """
    cells: list[tuple[str, ...]] = []
    rows: list[Mapping[str, Any]] = []
    for name in settings.sets:
        outcomes = [*_outcomes(engine, settings, name, progress)]
        seconds = _seconds_to_first_token(engine, settings, name, progress)
        for way in all_ways(settings.ways):
            row = _row(name, way, outcomes, seconds[way])
            rows.append(row)
            cells += _cells(row, seconds[Way.PLAIN].median / seconds[way].median)
    return BenchReport(
        name="quality",
        title=f"{settings.count} questions per set, seed {settings.seed} (95 % intervals)",
        columns=(
            *("set", "way", "whole answers right, %", "beside", "points"),
            *("KL divergence, millinats", "same top token, %", "TTFT, ms"),
        ),
        cells=tuple(cells),
        rows=tuple(rows),
    )


def _outcomes(
    engine: Engine, settings: QualitySettings, name: str, progress: Progress
) -> Iterator[Mapping[Way, Outcome]]:
    cases = draw_cases(SETS[name].questions, settings.seed, settings.count)
    done = 0
    progress(name, done, settings.count)
    while chunk := _chunk(engine, settings, name, [*islice(cases, _CHUNK)]):
        yield from chunk.outcomes()
        done += len(chunk.cases)
        progress(name, done, settings.count)


def _chunk(engine: Engine, settings: QualitySettings, name: str, cases: Sequence[Any]) -> Chunk | None:
    if not cases:
        return None
    return Chunk(
        engine=engine,
        cases=cases,
        arguments=SETS[name].arguments,
        instruction=settings.instruction,
        max_new_tokens=settings.max_new_tokens,
        chosen=settings.ways,
    )


def _seconds_to_first_token(
    engine: Engine, settings: QualitySettings, name: str, progress: Progress
) -> Mapping[Way, Samples]:
    """Measure the time from the call to the first token, on one document and warm schemas."""
    cases = [*draw_cases(SETS[name].questions, settings.seed, 1)]
    chunk = _chunk(engine, settings, name, cases)
    assert chunk is not None
    chunk.add_schemas()
    engine.warm()
    calls: dict[str, Callable[[], object]] = {Way.PLAIN: partial(plain_answers, engine, chunk.prompts(Way.PLAIN), 1)}
    for way in chunk.ways[1:]:
        calls[way] = partial(engine.generate, chunk.prompts(way)[0], max_new_tokens=1, do_sample=False)
    samples = interleave(calls, settings.repeats, engine.model.device, partial(progress, f"{name}, TTFT"))
    return {way: samples[way] for way in chunk.ways}


def _row(name: str, way: Way, outcomes: Sequence[Mapping[Way, Outcome]], seconds: Samples) -> dict[str, Any]:
    here = [each[way] for each in outcomes]
    rate = Rate(right=sum(each.right for each in here), asked=len(here))
    return {
        "set": name,
        "way": way.value,
        "levels": sorted({each.level for each in here}),
        "asked": rate.asked,
        "right": rate.right,
        "share": _interval(rate.share, *rate.interval),
        "beside": {other.value: _beside(way, other, outcomes) for other in way.beside},
        "ttft_s": list(seconds.seconds),
        "answers": "".join("+" if each.right else "-" for each in here),
    }


def _beside(way: Way, other: Way, outcomes: Sequence[Mapping[Way, Outcome]]) -> dict[str, Any]:
    """Compare two ways on the same questions."""
    rights = ([each[chosen].right for each in outcomes] for chosen in (way, other))
    distances = [each[way].distances[other] for each in outcomes]
    return {
        "difference": _interval(*paired_difference(*rights)),
        "divergence": _interval(*mean_interval([each.divergence for each in distances])),
        "agreement": _interval(*mean_interval([each.agreement for each in distances])),
    }


def _interval(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}


def _cells(row: Mapping[str, Any], speedup: float) -> Iterator[tuple[str, ...]]:
    """Yield one line of the table for each way that this one is compared with."""
    median = Samples(seconds=tuple(row["ttft_s"])).median
    first = row["set"], row["way"], _shown(row["share"], 100, 1)
    ttft = f"{1e3 * median:.1f} ({speedup:.1f}x)"
    if not row["beside"]:
        yield (*first, "", "", "", "", ttft)
    for other, found in row["beside"].items():
        points = _shown(found["difference"], 100, 1, sign="+")
        yield (*first, other, points, _shown(found["divergence"], 1000, 2), _shown(found["agreement"], 100, 1), ttft)
        first, ttft = ("", "", ""), ""


def _shown(interval: Mapping[str, float], scale: float, digits: int, sign: str = "") -> str:
    value, low, high = (f"{scale * interval[key]:{sign}.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} ({low} to {high})"
