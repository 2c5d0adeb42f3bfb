"""The quality benchmark compares like with like."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import pytest

from benchmarks.quality.answers import Chunk, Outcome, plain_token_ids
from benchmarks.quality.comparison import _further_answers
from benchmarks.quality.documents import Quiz, QuizSlot
from benchmarks.quality.sets import SETS, draw_quizzes
from benchmarks.quality.ways import DEFAULT_WAYS, way_named
from promptcache.engine import Engine
from promptcache.model import used_tokens
from promptcache.testing import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

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
        chosen=[*map(way_named, ways)],
    )


def outcomes(engine: Engine, name: str, **settings: object) -> list[Mapping[str, Outcome]]:
    return [*chain.from_iterable(chunk(engine, name, **settings).outcomes())]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["demo-facts", "form-own-text"])
def test_a_scaffold_over_all_is_plain_prefill(engine: Engine, name: str) -> None:
    """Where all modules are present and none has slots, a scaffold over all of them predicts what prefill does."""
    quizzes = [_as_text(quiz) for quiz in draw_quizzes(name, 0, NUM_CASES)]
    served = Chunk(engine=engine, quizzes=quizzes, max_new_tokens=40, chosen=[way_named("scaffold")])
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
    for each in outcomes(engine, "demo-facts", ways=("slots",)):
        assert each["slots"].level == "modular"
        assert each["slots"].distances["plain"].divergence > 1e-6


@pytest.mark.parametrize("name", usual_first([*SETS]))
def test_every_way_shows_the_same_text(engine: Engine, name: str) -> None:
    """All ways of serving a document give the model the same text, whatever is left out or filled in."""
    ways = ("slots", "own", "requires", "scaffold", "int8", "text")
    served = chunk(engine, name, count=6, ways=ways)
    served.add_schemas()

    for index, quiz in enumerate(served.quizzes):
        (question,) = quiz.questions
        plain = engine.tokenizer.detokenize(plain_token_ids(engine, quiz, question))
        for way in served.ways[1:]:
            plan = engine.plan(served.prompt(index, question, way))
            used = used_tokens(plan.tokens)
            assert engine.tokenizer.detokenize([each.token_id for each in used]) == plain


@pytest.mark.parametrize("name", usual_first(BYTE_SETS))
def test_every_set_is_answered_in_every_way(tiny: Engine, name: str) -> None:
    """Two questions of every set go through a tiny random model; its answers are compared at ordinary prefill's tokens."""
    found = outcomes(tiny, name, count=2, max_new_tokens=3)

    assert len(found) == 2
    for each in found:
        for way in DEFAULT_WAYS:
            assert 1 <= len(each[way].distances["plain"].agrees) <= 3


@pytest.mark.parametrize("name", usual_first([*SETS]))
def test_judges_accept_the_right_answer_only(name: str) -> None:
    """The judge of each question accepts its own answer, and neither an empty one nor most of other documents."""
    quizzes = [*draw_quizzes(name, 0, 40, None)]
    accepted = 0
    for quiz, other in pairwise(quizzes):
        (question,) = quiz.questions
        assert question.judge(question.answer)
        assert not question.judge("")
        accepted += question.judge(other.questions[0].answer)

    assert accepted < 0.6 * len(quizzes)  # documents share a few values


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
