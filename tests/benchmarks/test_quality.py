"""The quality benchmark compares like with like."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from benchmarks.quality.answers import Chunk, Outcome, plain_token_ids
from benchmarks.quality.comparison import QualitySettings, _further_answers, compare_quality
from benchmarks.quality.documents import Quiz, QuizSlot, schema_xml
from benchmarks.quality.sets import LONG, SETS, SHORT, draw_quizzes
from benchmarks.quality.ways import DEFAULT_WAYS, Way, way_named
from promptcache.audit import compare_predictions
from promptcache.demo import MODEL_FOLDER
from promptcache.engine import Engine
from promptcache.language import check_schema, parse_schema
from promptcache.runtime import used_tokens
from promptcache.testing import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

pytestmark = pytest.mark.long

NUM_CASES = 3
BYTE_SETS = [name for name in SETS if name != "demo-arguments"]  # some of its arguments are too long in bytes
USUAL = ("facts", "classes", "form-own-text")


def usual_first(names: Sequence[str]) -> list[Any]:
    """Return sets as parameters, of which all but a few are for slow runs."""
    return [name if name in USUAL else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The demo model."""
    return Engine.from_pretrained("demo")


@pytest.fixture(scope="module")
def tiny() -> Engine:
    """A tiny random model whose tokens are bytes."""
    return Engine(tiny_model(), ByteTokenizer())


def named(*names: str) -> list[Way]:
    return [*map(way_named, names)]


def chunk(
    engine: Engine,
    name: str,
    *,
    count: int = NUM_CASES,
    seed: int = 0,
    ways: Sequence[str] = DEFAULT_WAYS,
    module_tokens: int | None = None,
    max_new_tokens: int = 40,
) -> Chunk:
    return Chunk(
        engine=engine,
        quizzes=[*draw_quizzes(name, seed, count, module_tokens)],
        max_new_tokens=max_new_tokens,
        chosen=named(*ways),
    )


def outcomes(engine: Engine, name: str, **settings: object) -> list[Mapping[str, Outcome]]:
    return [*chain.from_iterable(chunk(engine, name, **settings).outcomes())]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["demo-facts", "form-own-text"])
def test_a_scaffold_over_all_is_plain_prefill(engine: Engine, name: str) -> None:
    """Where all modules are present, a scaffold over all of them predicts what plain prefill does, up to rounding.

    Where values are arguments, the tokens differ, so only the schema without slots is compared.
    """
    quizzes = [_as_text(quiz) for quiz in draw_quizzes(name, 0, NUM_CASES)]
    served = Chunk(engine=engine, quizzes=quizzes, max_new_tokens=40, chosen=named("scaffold"))
    for each in chain.from_iterable(served.outcomes()):
        assert each["scaffold"].level == "exact"
        assert each["scaffold"].distances["plain"].divergence < 1e-6
        assert each["scaffold"].distances["plain"].agreement == 1.0
        assert each["scaffold"].right == each["plain"].right


def _as_text(quiz: Quiz) -> Quiz:
    if not quiz.has_slots:
        return quiz
    return replace(
        quiz,
        modules=tuple(
            ("".join(piece.value if isinstance(piece, QuizSlot) else piece for piece in module),)
            for module in quiz.modules
        ),
    )


def test_modules_that_have_not_seen_each_other_differ(engine: Engine) -> None:
    """The comparison sees a difference where there is one."""
    for each in outcomes(engine, "demo-facts"):
        assert each["guaranteed"].level == "modular"
        assert each["guaranteed"].distances["plain"].divergence > 1e-6


def test_quantized_kv_is_compared_with_what_it_came_from(engine: Engine) -> None:
    """Quantized KV stands beside plain prefill and beside the same modules as computed, nearer to these the more bits."""
    for each in outcomes(engine, "demo-facts", ways=["int8", "int4"]):
        assert list(each) == ["plain", "guaranteed", "int8", "int4"]
        near, far = (each[way].distances for way in ("int8", "int4"))
        assert set(near) == set(far) == {"plain", "guaranteed"}
        assert near["guaranteed"].divergence < far["guaranteed"].divergence
        assert near["guaranteed"].divergence < near["plain"].divergence


def test_distances_count_places() -> None:
    """Agreement is the share of places whose likeliest token is the same, divergence the mean over all of them."""
    there = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]]).log()
    here = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.25, 0.25]]).log()

    found = compare_predictions(here, there)

    assert (found.num_agreeing, found.num_places, found.agreement) == (1, 2, 0.5)
    assert found.divergence == pytest.approx((0.5 - 0.25) * math.log(2) / 2)


@pytest.mark.parametrize("name", usual_first([*SETS]))
def test_every_way_shows_the_same_text(engine: Engine, name: str) -> None:
    """All ways of serving a document give the model the same text, whatever is left out or filled in."""
    ways = ("guaranteed", "own", "requires", "scaffold", "int8", "text")
    served = chunk(engine, name, count=6, ways=ways)
    served.add_schemas()

    for index, quiz in enumerate(served.quizzes):
        (question,) = quiz.questions
        plain = engine.tokenizer.detokenize(plain_token_ids(engine, quiz, question))
        for way in served.ways[1:]:
            plan = engine.plan(served.prompt(index, question, way))
            used = used_tokens(plan.tokens)
            assert engine.tokenizer.detokenize([each.token_id for each in used]) == plain


@pytest.mark.parametrize("num_absent", [0, 4, 28])
def test_a_text_requires_the_module_that_it_refers_to(num_absent: int) -> None:
    """The modules of a pair stay one, wherever modules of other documents are put."""
    for quiz in draw_quizzes("follow-up", 3, 8, SHORT, num_absent):
        schema = check_schema(parse_schema(schema_xml(quiz, way_named("requires"), "s", len)))
        own = [f"document/m{index}" for index in range(len(quiz.modules)) if index not in quiz.absent]
        required = {path: schema.guaranteed[path] - {"document", path} for path in schema.modules}

        for first, second in zip(own[::2], own[1::2], strict=True):
            assert (required.pop(first), required.pop(second)) == (set(), {first})
            assert "The next town is" in quiz.modules[int(first.removeprefix("document/m"))][0]
        assert not any(required.values())


@pytest.mark.parametrize("name", usual_first(BYTE_SETS))
def test_every_set_is_answered_in_every_way(tiny: Engine, name: str) -> None:
    """Two questions of every set go through a tiny random model; its answers are compared at plain prefill's tokens."""
    found = outcomes(tiny, name, count=2, max_new_tokens=3)

    assert len(found) == 2
    for each in found:
        for way in DEFAULT_WAYS:
            assert 1 <= each[way].distances["plain"].num_places <= 3


@pytest.mark.slow
def test_questions_share_a_document_of_long_modules(engine: Engine) -> None:
    """Long documents have several questions; the answers and distances are those of the same questions asked alone."""
    (quiz,) = together = chunk(engine, "facts", module_tokens=LONG, ways=["own"], max_new_tokens=3).quizzes
    alone = [replace(quiz, questions=(question,)) for question in quiz.questions]
    assert len(alone) == NUM_CASES

    results = []
    for quizzes in (together, alone):
        served = Chunk(engine=engine, quizzes=quizzes, max_new_tokens=3, chosen=named("own"))
        results.append([*chain.from_iterable(served.outcomes())])

    for one, other in zip(*results, strict=True):
        assert one["own"].answer == other["own"].answer
        assert one["plain"].answer == other["plain"].answer
        assert one["own"].distances["plain"].divergence == pytest.approx(
            other["own"].distances["plain"].divergence, rel=1e-3
        )


@pytest.mark.slow
def test_answers_are_those_of_generation(engine: Engine) -> None:
    """An answer that is taken from plain prefill, because all predictions agree, is the one that generation gives."""
    served = chunk(engine, "demo-arguments", count=8, ways=["guaranteed", "none"])
    found = [*chain.from_iterable(served.outcomes())]

    agreeing = {each["none"].distances["plain"].agreement == 1.0 for each in found}
    assert agreeing == {True, False}  # both kinds are compared
    for index, each in enumerate(found):
        for way in served.ways[1:]:
            prompt = served.prompt(index, served.quizzes[index].questions[0], way)
            assert (
                engine.generate(prompt, max_new_tokens=40, do_sample=False, **way.request).text == each[way.name].answer
            )


def test_plain_prefill_tokenizes_each_turn_as_a_whole(engine: Engine) -> None:
    """The tokens are those that the model's own chat template gives, without cuts between modules and arguments."""
    (quiz,) = draw_quizzes("demo-arguments", 0, 1)
    turns = [{"role": "system", "content": quiz.text}, {"role": "user", "content": quiz.questions[0].text}]
    tokenizer = AutoTokenizer.from_pretrained(MODEL_FOLDER)
    whole = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]

    assert plain_token_ids(engine, quiz, quiz.questions[0]) == whole


@pytest.mark.slow
def test_report_counts_each_question_in_every_way(engine: Engine) -> None:
    """Each set has a row for each way that is needed, over the same number of questions, and progress reaches the
    count; the table has a line for each comparison."""
    told: list[tuple[str, int, int | None]] = []
    settings = QualitySettings(
        sets=["demo-facts", "demo-arguments"], count=2, seed=5, ways=named("own", "int8"), max_new_tokens=12, repeats=1
    )
    report = compare_quality(engine, settings, lambda *each: told.append(each))

    ways = ["plain", "guaranteed", "own", "int8"]
    beside = [set(), {"plain"}, {"plain"}, {"plain", "guaranteed"}]
    assert [(row["set"], row["way"]) for row in report.rows] == [(s, way) for s in settings.sets for way in ways]
    assert [set(row["beside"]) for row in report.rows] == beside * 2
    assert {row["asked"] for row in report.rows} == {2}
    assert [each for each in told if "TTFT" not in each[0]] == [
        (name, done, 2) for name in ("demo-facts", "demo-arguments") for done in (0, 2)
    ]
    assert all(len(cells) == len(report.columns) for cells in report.cells)
    assert [cells[4] for cells in report.cells] == ["", "plain", "plain", "plain", "guaranteed"] * 2


def test_a_repair_is_a_way_of_its_own_on_one_schema() -> None:
    """Settings of `repair` are passed on with each request, and share the schema and the KV of `guaranteed`."""
    none, first, share = named("none", "first-16", "first-20%")

    assert [way.request for way in (none, first, share)] == [
        {"repair": name} for name in ("none", "first-16", "first-20%")
    ]
    assert {way.schema_name for way in (none, first, share)} == {way_named("guaranteed").schema_name}
    assert way_named("guaranteed").request == {}
    assert way_named("promoted").schema_name != way_named("guaranteed").schema_name


@pytest.mark.parametrize("name", ["first", "first-", "first-4%%", "First-4", "second-4", ""])
def test_unknown_ways_are_refused(name: str) -> None:
    """A name that is neither a way nor a setting of `repair` is refused with the names that there are."""
    with pytest.raises(ValueError, match="guaranteed, own"):
        way_named(name)


def test_history_has_the_document_from_the_first_answer_on(tiny: Engine) -> None:
    """Each further answer computes the new question only: what modules do not have exactly is in history."""
    served = chunk(tiny, "facts", count=1, ways=["history"], max_new_tokens=1)

    answers = _further_answers(served, way_named("history"))
    first, *others = (next(answers).usage for _ in range(3))

    question = served.quizzes[0].questions[0].text
    assert first.num_history_tokens == 0
    for usage in others:
        assert usage.num_reused_tokens == first.num_reused_tokens
        assert usage.num_new_tokens <= len(f"0. {question}") + 8
        assert usage.num_history_tokens + usage.num_new_tokens == first.num_new_tokens
