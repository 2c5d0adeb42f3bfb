"""`python -m benchmarks quality`: the cost of module reuse in quality, on questions with known answers.

Each document is served in every way with the same questions, so all comparisons are paired. Answers are greedy. Sets
are in `sets`, ways in `ways`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, TypeAlias

from benchmarks.common import BenchReport
from benchmarks.intervals import difference_interval, share_interval
from benchmarks.quality.answers import GREEDY, Chunk, Outcome, plain_answers
from benchmarks.quality.documents import Quiz
from benchmarks.quality.sets import SETS, SHORT, draw_quizzes
from benchmarks.quality.ways import DEFAULT_WAYS, PLAIN, Way, way_named
from promptcache.decode import Completion
from promptcache.engine import Engine
from promptcache.fidelity import clustered_interval
from promptcache.progress import Progress, silent
from promptcache.timing import Samples, interleave

_CHUNK = 16  # questions whose KV is in memory at one time

_DocumentOutcomes: TypeAlias = Sequence[Mapping[str, Outcome]]  # by question and name of the way


@dataclass(frozen=True, slots=True, kw_only=True)
class QualitySettings:
    """Settings of the quality benchmark.

    Attributes:
        sets: Names in `SETS`.
        count: Questions of each set.
        seed: Seed of the documents and questions.
        module_tokens: Approximate sizes of modules, for sets that can be drawn in several.
        num_absent: Modules in each schema that the prompts do not select, beside those that they do.
        ways: Ways to compare. Plain prefill and the ways they are compared with are added.
        instruction: Text at the start of each document; None is the set's own.
        max_new_tokens: Limit of an answer; None is the set's own.
        repeats: Rounds of the measurement of TTFT, on one document of each set.
    """

    sets: Sequence[str]
    count: int
    seed: int
    module_tokens: Sequence[int] = (SHORT,)
    num_absent: int = 0
    ways: Sequence[Way] = tuple(map(way_named, DEFAULT_WAYS))
    instruction: str | None = None
    max_new_tokens: int | None = None
    repeats: int = 10


def compare_quality(engine: Engine, settings: QualitySettings, progress: Progress = silent) -> BenchReport:
    """Ask all questions in every way and return shares of right answers and distances with 95 % intervals.

    The intervals are Wilson's for shares, Newcombe's for paired differences of shares, and the bootstrap over documents
    for distances, and for all if documents have several questions. `progress` counts the questions of a set, then the
    rounds of TTFT.
    """
    cells: list[tuple[str, ...]] = []
    rows: list[Mapping[str, Any]] = []
    for name, size in _chosen(settings):
        quizzes = _quizzes(settings, name, size)
        shown = name if size is None else f"{name}, {size} tokens"
        limit = settings.max_new_tokens or SETS[name].max_new_tokens
        chunks = _chunks(engine, settings.ways, quizzes, limit)
        documents = [*_outcomes(chunks, settings.count, partial(progress, shown))]
        seconds = _seconds_to_first_token(engine, settings, quizzes[0], partial(progress, f"{shown}, TTFT"))
        for way, samples in seconds.items():
            row = _row(name, size, way, documents, samples)
            rows.append(row)
            cells += _cells(row, seconds[PLAIN].median / samples.median)
    return BenchReport(
        name="quality",
        title=f"{settings.count} questions per set, seed {settings.seed} (95 % intervals)",
        columns=(
            *("set", "module tokens", "way", "right, %", "beside", "points"),
            *("KL divergence, millinats", "same top token, %", "TTFT, ms"),
        ),
        cells=tuple(cells),
        rows=tuple(rows),
    )


def _chosen(settings: QualitySettings) -> Iterator[tuple[str, int | None]]:
    """Yield each set with each of its sizes; a set that has one size only comes once."""
    for name in settings.sets:
        for size in settings.module_tokens if SETS[name].sized else (None,):
            yield name, size


def _quizzes(settings: QualitySettings, name: str, size: int | None) -> list[Quiz]:
    """Draw documents until they have `settings.count` questions."""
    quizzes = [*draw_quizzes(name, settings.seed, settings.count, size, settings.num_absent)]
    if settings.instruction is None:
        return quizzes
    return [replace(quiz, instruction=settings.instruction) for quiz in quizzes]


def _chunks(engine: Engine, ways: Sequence[Way], quizzes: Sequence[Quiz], max_new_tokens: int) -> Iterator[Chunk]:
    size = max(1, _CHUNK // len(quizzes[0].questions))
    for start in range(0, len(quizzes), size):
        some = quizzes[start : start + size]
        yield Chunk(engine=engine, quizzes=some, max_new_tokens=max_new_tokens, chosen=ways)


def _outcomes(chunks: Iterator[Chunk], count: int, progress: Callable[[int, int], None]) -> Iterator[_DocumentOutcomes]:
    done = 0
    progress(done, count)
    for chunk in chunks:
        for outcomes in chunk.outcomes():
            yield outcomes
            done += len(outcomes)
        progress(done, count)


def _seconds_to_first_token(
    engine: Engine, settings: QualitySettings, quiz: Quiz, progress: Callable[[int, int], None]
) -> Mapping[Way, Samples]:
    """Measure the time from the call to the first token, for one question and warm schemas."""
    first = replace(quiz, questions=quiz.questions[:1])
    (chunk,) = _chunks(engine, settings.ways, [first], 1)
    chunk.add_schemas()
    engine.warm()
    calls: dict[str, Callable[[], object]] = {PLAIN.name: partial(plain_answers, engine, [first], 1)}
    for way in chunk.ways[1:]:
        if way.history:
            calls[way.name] = partial(next, _further_answers(chunk, way))
        else:
            prompt = chunk.prompt(0, first.questions[0], way)
            calls[way.name] = partial(engine.generate, prompt, max_new_tokens=1, **GREEDY, **way.request)
    samples = interleave(calls, settings.repeats, engine.model.device, progress)
    return {way: samples[way.name] for way in chunk.ways}


def _further_answers(chunk: Chunk, way: Way) -> Iterator[Completion]:
    """Yield an answer each time, to the first question with another number in front, from an engine with history."""
    engine = Engine(chunk.engine.model, chunk.engine.tokenizer, store=chunk.engine.store)
    served = replace(chunk, engine=engine, chosen=[way])
    served.add_schemas()
    asked = served.quizzes[0].questions[0]
    for number in count():
        prompt = served.prompt(0, replace(asked, text=f"{number}. {asked.text}"), way)
        yield engine.generate(prompt, max_new_tokens=1, **GREEDY, **way.request)


def _row(
    name: str, size: int | None, way: Way, documents: Sequence[_DocumentOutcomes], seconds: Samples
) -> dict[str, Any]:
    here = [[each[way.name] for each in outcomes] for outcomes in documents]
    rights = [each.right for outcomes in here for each in outcomes]
    return {
        "set": name,
        "module_tokens": size,
        "way": way.name,
        "levels": sorted({each.level for outcomes in here for each in outcomes}),
        "documents": len(documents),
        "asked": len(rights),
        "right": sum(rights),
        "share": _interval(*share_interval([[each.right for each in outcomes] for outcomes in here])),
        "beside": {other: _beside(way.name, other, documents) for other in way.beside},
        "ttft_s": list(seconds.seconds),
        "answers": "".join("+" if each else "-" for each in rights),
        "texts": [each.answer for outcomes in here for each in outcomes],
    }


def _beside(way: str, other: str, documents: Sequence[_DocumentOutcomes]) -> dict[str, Any]:
    """Compare two ways on the same questions."""
    rights = ([[each[name].right for each in outcomes] for outcomes in documents] for name in (way, other))
    distances = [[each[way].distances[other] for each in outcomes] for outcomes in documents]
    divergences = [[each.divergence for each in document] for document in distances]
    agreements = [[each.agreement for each in document] for document in distances]
    return {
        "difference": _interval(*difference_interval(*rights)),
        "divergence": _interval(*clustered_interval(divergences)),
        "agreement": _interval(*clustered_interval(agreements)),
    }


def _interval(value: float, low: float, high: float) -> dict[str, float]:
    return {"value": value, "low": low, "high": high}


def _cells(row: Mapping[str, Any], speedup: float) -> Iterator[tuple[str, ...]]:
    """Yield one line of the table for each way that this one is compared with."""
    median = Samples(seconds=tuple(row["ttft_s"])).median
    size = "" if row["module_tokens"] is None else str(row["module_tokens"])
    first = row["set"], size, row["way"], _shown(row["share"], 100, 1)
    ttft = f"{1e3 * median:.1f} ({speedup:.1f}x)"
    if not row["beside"]:
        yield (*first, "", "", "", "", ttft)
    for other, found in row["beside"].items():
        points = _shown(found["difference"], 100, 1, sign="+")
        yield (*first, other, points, _shown(found["divergence"], 1000, 2), _shown(found["agreement"], 100, 1), ttft)
        first, ttft = ("", "", "", ""), ""


def _shown(interval: Mapping[str, float], scale: float, digits: int, sign: str = "") -> str:
    value, low, high = (f"{scale * interval[key]:{sign}.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} ({low} to {high})"
