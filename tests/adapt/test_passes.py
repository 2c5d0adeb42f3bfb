"""The passes of a training compute what the engine computes: the student a cached request, the teacher plain prefill."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model

from promptcache import Engine
from promptcache.adapt.lessons import Lesson, Lessons
from promptcache.adapt.passes import (
    divergences,
    hidden_distances,
    plain_predictions,
    student_predictions,
    teach,
)
from promptcache.adapt.sources import DrawnPrompt, SyntheticSource, state_of
from promptcache.diagnostics import InvalidValue
from promptcache.language import CheckedSchema, Selection
from promptcache.layout import RequestTokens
from promptcache.runtime import reference_logits, without_peft_warnings
from promptcache.testing.byte_tokenizer import ByteTokenizer
from tests import strategies
from tests.adapt.conftest import SCHEMA, new_engine
from tests.conftest import law_examples
from tests.families import random_model, usual_families

TOLERANCE = 1e-5


def untrained(engine: Engine) -> Engine:
    """Add an adapter that changes nothing yet, as at the start of a training."""
    with without_peft_warnings():
        get_peft_model(engine.model.hf, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    return engine


PLAIN, UNTRAINED = new_engine(), untrained(new_engine())
"""The same model, without and with an untrained adapter."""


def lessons_of(engine: Engine, draw: Any) -> Lessons:
    """Lessons from one source."""
    return Lessons(engine=engine, sources=[SimpleNamespace(draw=draw)], seed=0, max_tokens=4096, max_new_tokens=8)


def lesson_of(schema: CheckedSchema, selection: Selection) -> Lesson | None:
    """The lesson of one prompt; None if it has none, as it is exact."""
    drawn = DrawnPrompt(state_of(PLAIN, schema), selection)
    try:
        return lessons_of(PLAIN, lambda rng, held_out: drawn).lesson(0)
    except InvalidValue:
        return None


def largest(difference: torch.Tensor) -> float:
    return float(difference.detach().abs().max())


def continued(tokens: RequestTokens, answer: tuple[int, ...]) -> RequestTokens:
    """The request with an answer behind it, as the ladder of an audit has it."""
    stop = tokens.position_ids[-1] + 1
    return RequestTokens(
        parts=tokens.parts,
        token_ids=(*tokens.token_ids, *answer),
        position_ids=(*tokens.position_ids, *range(stop, stop + len(answer))),
    )


@pytest.mark.law
@given(data=st.data(), schema=strategies.schemas())
@settings(max_examples=law_examples(0.6))
def test_the_student_is_the_reference(data: st.DataObject, schema: CheckedSchema) -> None:
    """Before training, the student's logits are those of the engine's reference at the end of a prompt and its answer."""
    selection = data.draw(strategies.prompts(schema))
    answer = data.draw(st.lists(st.integers(0, 255), min_size=1, max_size=5).map(tuple))
    lesson = lesson_of(schema, selection)
    assume(lesson is not None)
    assert lesson is not None

    found = student_predictions(UNTRAINED.model, lesson, answer)
    expected = reference_logits(continued(lesson.tokens, answer[:-1]), PLAIN.model)[-len(found.logits) :]

    assert len(found.logits) == lesson.num_shared + len(answer) - 1
    assert found.logits.requires_grad
    assert largest(found.logits - expected) < TOLERANCE


def test_the_student_is_the_engine() -> None:
    """The student's logits are those that an engine computes from linked KV, and those of `Engine.reference`."""
    schema = (
        '<schema name="s"><system>Go. <module name="a">Red.</module><module name="b">Blue.</module></system></schema>'
    )
    prompt = '<prompt schema="s"><a/><b/><user>Which?</user></prompt>'
    engine = new_engine()
    checked = engine.add_schema(schema)
    lesson = lesson_of(checked, engine.plan(prompt).selection)
    assert lesson is not None

    found = student_predictions(UNTRAINED.model, lesson, (65,)).logits

    assert largest(found - engine.logits(prompt)[-len(found) :]) < TOLERANCE
    assert largest(found - engine.reference(prompt)[-len(found) :]) < TOLERANCE
    assert largest(found - plain_predictions(PLAIN.model, lesson, (65,)).logits) > 1e-2  # modules matter


@pytest.mark.parametrize("family", usual_families())
def test_passes_are_those_of_every_family(family: str) -> None:
    """For each family of models, the student is the engine, and plain prefill is the teacher in a padded batch."""
    engine = Engine(random_model(family), ByteTokenizer())
    checked = engine.add_schema(SCHEMA)
    prompts = [f'<prompt schema="club">{used}<user>Who?</user></prompt>' for used in ("<ann/><bob/>", "<bob/><cat/>")]
    lessons = []
    for prompt in prompts:
        drawn = DrawnPrompt(state_of(engine, checked), engine.plan(prompt).selection)
        lessons.append(lessons_of(engine, lambda rng, held_out, drawn=drawn: drawn).lesson(0))

    for lesson, target, prompt in zip(lessons, teach(engine.model, lessons, (), 3), prompts, strict=True):
        plain = plain_predictions(engine.model, lesson, target.answer_ids)
        student = student_predictions(engine.model, lesson, target.answer_ids[:1]).logits
        assert largest(plain.logits - target.predictions.logits) < TOLERANCE
        assert largest(student - engine.logits(prompt)[-len(student) :]) < 10 * TOLERANCE


def synthetic(count: int, engine: Engine = PLAIN) -> list[Lesson]:
    """Lessons of different lengths."""
    source = SyntheticSource(engine)
    lessons = [lessons_of(engine, source.draw).lesson(number) for number in range(count)]
    assert len({len(each.whole_ids) for each in lessons}) > 1
    return lessons


def test_the_plain_student_is_the_teacher() -> None:
    """Without training, plain prefill with an adapter has the teacher's logits and states, whatever else the batch has."""
    lessons = synthetic(4)

    targets = teach(PLAIN.model, lessons, (), 6)

    for lesson, target in zip(lessons, targets, strict=True):
        found = plain_predictions(UNTRAINED.model, lesson, target.answer_ids)
        assert found.logits.shape == target.predictions.logits.shape
        assert largest(found.logits - target.predictions.logits) < TOLERANCE
        assert largest(divergences(found, target.predictions)) < TOLERANCE
        assert largest(hidden_distances(found, target.predictions)) < TOLERANCE


def test_the_teacher_answers_as_the_model_does() -> None:
    """Greedy answers are those of transformers after plain prefill, and end with the first end token."""
    lessons = synthetic(3)
    long = [each.answer_ids for each in teach(PLAIN.model, lessons, (), 6)]
    ends = (long[0][2],)

    for lesson, answer, ended in zip(lessons, long, teach(PLAIN.model, lessons, ends, 6), strict=True):
        token_ids = torch.tensor([lesson.whole_ids])
        own = PLAIN.model.hf.generate(
            token_ids, attention_mask=torch.ones_like(token_ids), max_new_tokens=6, do_sample=False
        )
        assert answer == tuple(own[0, token_ids.shape[1] :].tolist())
        stop = next((index + 1 for index, each in enumerate(answer) if each in ends), len(answer))
        assert ended.answer_ids == answer[:stop]


def test_sampled_answers_are_those_of_their_seed() -> None:
    """The same seed samples the same answers, another one others, and greedy rows stay greedy."""
    lessons = synthetic(3)

    def answers(seed: int) -> list[tuple[int, ...]]:
        generator = torch.Generator().manual_seed(seed)
        return [each.answer_ids for each in teach(PLAIN.model, lessons, (), 6, (True, False, True), generator)]

    greedy = teach(PLAIN.model, lessons, (), 6)
    assert answers(1) == answers(1) != answers(2)
    assert answers(1)[1] == answers(2)[1] == greedy[1].answer_ids


def test_lessons_are_those_of_their_number() -> None:
    """A lesson is the same each time, and held-out lessons are others."""
    made = lessons_of(PLAIN, SyntheticSource(PLAIN).draw)

    assert made.lesson(3) == made.lesson(3) != made.lesson(4)
    assert made.lesson(3) != made.lesson(3, held_out=True)


@pytest.mark.parametrize("form", range(12))
def test_the_end_of_a_question_is_shared(form: int) -> None:
    """The last tokens of a lesson are tokens of the request behind all modules, and the last tokens of plain prefill."""
    lesson = lessons_of(PLAIN, SyntheticSource(PLAIN).draw).lesson(form)
    last = max(part.last for part in lesson.tokens.parts)

    assert lesson.tokens.token_ids[-lesson.num_shared :] == lesson.whole_ids[-lesson.num_shared :]
    assert lesson.tokens.position_ids[-lesson.num_shared] > last


def test_prompts_that_teach_nothing_are_refused() -> None:
    """If all prompts are exact or too long, the error says so before anything is computed."""
    exact = PLAIN.add_schema('<schema name="exact"><system>All of it.</system></schema>')
    drawn = DrawnPrompt(state_of(PLAIN, exact), PLAIN.plan('<prompt schema="exact"><user>Hi</user></prompt>').selection)

    with pytest.raises(InvalidValue, match="each is exact, or has more than 4096 tokens"):
        lessons_of(PLAIN, lambda rng, held_out: drawn).lesson(0)


def test_tokens_in_front_of_modules_are_not_shared() -> None:
    """New tokens with cached text behind them do not belong to the end of the question, even if they look like it."""
    engine = new_engine()
    checked = engine.add_schema(
        '<schema name="s"><user>Hm. <module name="a">Ann.</module>'
        '<module name="b">Bob <parameter name="p" length="4"/>e me</module></user></schema>'
    )
    plan = engine.plan('<prompt schema="s"><a/><b p="x"/>Who?</prompt>')
    lesson = lesson_of(checked, plan.selection)
    assert lesson is not None
    cached = max(part.last for part in lesson.tokens.parts)

    behind = [position for position in lesson.tokens.position_ids if position > cached]
    before = lesson.tokens.token_ids[-len(behind) - 1]
    assert before == lesson.whole_ids[-len(behind) - 1]  # the "e" behind the slot, and the "e" of "me"
    assert lesson.num_shared == len(behind)
