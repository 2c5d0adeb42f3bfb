"""The passes of a training compute what the engine computes: the student encodes modules, the teacher prefills."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache import Engine
from promptcache.adapt.lessons import Lesson, Lessons
from promptcache.adapt.passes import kv_distances, modular_kv, modular_logits, plain_kv, teach
from promptcache.adapt.sources import DrawnPrompt, SchemaPrompts, SyntheticSource, plan_of, state_of
from promptcache.diagnostics import InvalidValue
from promptcache.language import CheckedSchema, Prompt, Selection
from promptcache.layout import RequestTokens
from promptcache.runtime import layers_to_adapt, plain_logits, reference_logits
from promptcache.testing.byte_tokenizer import ByteTokenizer
from tests import strategies
from tests.adapt.conftest import NOTES, SCHEMA, new_engine
from tests.conftest import law_examples
from tests.families import random_model, usual_families
from tests.module_adapter import add_random_adapter
from tests.strategies.collections import collection_schemas

TOLERANCE = 1e-5


PLAIN, ADAPTED = new_engine(), new_engine()
"""The same model, without and with an adapter."""
add_random_adapter(ADAPTED.model)


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
@given(data=st.data(), schema=strategies.schemas() | collection_schemas())
@settings(max_examples=law_examples(0.6))
def test_the_student_is_the_reference(data: st.DataObject, schema: CheckedSchema) -> None:
    """With any adapter, the student's logits are those of the engine's reference at the end of a prompt and its answer."""
    selection = data.draw(strategies.prompts(schema))
    answer = data.draw(st.lists(st.integers(0, 255), min_size=1, max_size=5).map(tuple))
    tokens = plan_of(PLAIN, DrawnPrompt(state_of(PLAIN, schema), selection)).tokens
    lesson = Lesson(tokens=tokens, whole_ids=())

    found = modular_logits(ADAPTED.model, lesson, answer)
    expected = reference_logits(continued(lesson.tokens, answer[:-1]), ADAPTED.model)[-len(found) :]

    assert len(found) == len(answer)
    assert largest(found - expected) < TOLERANCE


def test_members_are_learned_as_the_engine_lays_them_out() -> None:
    """Drawn prompts name members of collections, and the untrained student's logits are those of the engine's reference."""
    source, rng = SchemaPrompts(PLAIN, PLAIN.add_schema(NOTES), 0), Random(0)
    for number in range(6):
        drawn = source.draw(rng, held_out=number % 2 == 0)
        assert drawn is not None
        lesson = lesson_of(drawn.state.schema, drawn.selection)
        assert lesson is not None
        prompt = Prompt("kb")
        for path in drawn.selection.members:
            prompt = prompt.use(path)
        for each in drawn.selection.messages:
            prompt = prompt.text(each.text)

        found = modular_logits(PLAIN.model, lesson, (0,))

        assert len(drawn.selection.members) > 1
        assert largest(found - PLAIN.reference(prompt)[-1:]) < TOLERANCE


def test_the_adapter_is_for_modules_behind_stand_ins_only() -> None:
    """The student's KV has gradients of the adapter and differs by it; the teacher's KV and plain logits do not."""
    checked = PLAIN.add_schema(SCHEMA)
    plan = PLAIN.plan('<prompt schema="club"><ann/><bob/><cat/><user>Who?</user></prompt>')
    lesson = lesson_of(checked, plan.selection)
    assert lesson is not None
    names = [name for name in layers_to_adapt(PLAIN.model.hf) if name.endswith(("k_proj", "v_proj"))]
    layers = [ADAPTED.model.hf.get_submodule(name) for name in names]
    for layer in layers:
        layer.up.requires_grad_(True)

    own, other = (modular_kv(engine.model, lesson.tokens) for engine in (ADAPTED, PLAIN))
    own.sum().backward()

    assert len(layers) == 2 * PLAIN.model.shape.num_layers
    assert all(float(layer.up.grad.abs().sum()) > 0 for layer in layers)
    assert largest(own - other) > 1e-2
    assert largest(plain_kv(ADAPTED.model, lesson.tokens) - plain_kv(PLAIN.model, lesson.tokens)) < TOLERANCE
    plain = [plain_logits(lesson.tokens, engine.model) for engine in (ADAPTED, PLAIN)]
    assert largest(plain[0] - plain[1]) < TOLERANCE
    (first, *_), (again, *_) = (teach(engine.model, [lesson], (), 4) for engine in (ADAPTED, PLAIN))
    assert first.answer_ids == again.answer_ids
    assert largest(first.logits - again.logits) < TOLERANCE


@pytest.mark.parametrize("family", usual_families())
def test_passes_are_those_of_every_family(family: str) -> None:
    """For each family, the student is the engine, the teacher's KV that of its reference, and answers those of plain prefill."""
    engine = Engine(random_model(family), ByteTokenizer())
    checked = engine.add_schema(SCHEMA)
    prompts = [f'<prompt schema="club">{used}<user>Who?</user></prompt>' for used in ("<ann/><bob/>", "<bob/><cat/>")]
    lessons = []
    for prompt in prompts:
        drawn = DrawnPrompt(state_of(engine, checked), engine.plan(prompt).selection)
        if any(part.encoding.is_adapted for part in engine.plan(prompt).tokens.parts):
            lessons.append(lessons_of(engine, lambda rng, held_out, drawn=drawn: drawn).lesson(0))
    if not lessons:
        assert not engine.model.can_relocate  # positions are fixed then, without stand-ins
        return

    for lesson, target, prompt in zip(lessons, teach(engine.model, lessons, (), 3), prompts, strict=True):
        token_ids = torch.tensor([[*lesson.whole_ids, *target.answer_ids[:-1]]])
        with torch.no_grad():
            own = engine.model.forward(
                token_ids,
                torch.arange(token_ids.shape[1])[None],
                engine.model.plain_cache(engine.model.shape.num_layers),
                engine.model.attention_masks(*_causal(token_ids.shape[1])),
            )[0, -len(target.answer_ids) :]
        assert largest(own - target.logits) < TOLERANCE
        student = modular_logits(engine.model, lesson, target.answer_ids[:1])
        assert largest(student - engine.logits(prompt)[-1:]) < 10 * TOLERANCE
        near, far = modular_kv(engine.model, lesson.tokens).detach(), plain_kv(engine.model, lesson.tokens)
        distances = kv_distances(near, far)
        assert near.shape == far.shape
        assert float(distances[0].max()) < 1e-6 < float(distances.max())  # the first layer sees no other token


def _causal(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    places = torch.arange(count)
    distance = places[:, None] - places[None]
    return distance >= 0, distance


def synthetic(count: int, engine: Engine = PLAIN) -> list[Lesson]:
    """Lessons of different lengths."""
    source = SyntheticSource(engine)
    lessons = [lessons_of(engine, source.draw).lesson(number) for number in range(count)]
    assert len({len(each.whole_ids) for each in lessons}) > 1
    return lessons


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


def test_lessons_are_those_of_their_number() -> None:
    """A lesson is the same each time, and held-out lessons are others."""
    made = lessons_of(PLAIN, SyntheticSource(PLAIN).draw)

    assert made.lesson(3) == made.lesson(3) != made.lesson(4)
    assert made.lesson(3) != made.lesson(3, held_out=True)


def test_prompts_that_teach_nothing_are_refused() -> None:
    """If an adapter takes part in no prompt, the error says so before anything is computed."""
    exact = PLAIN.add_schema('<schema name="exact"><system>All of it.</system></schema>')
    drawn = DrawnPrompt(state_of(PLAIN, exact), PLAIN.plan('<prompt schema="exact"><user>Hi</user></prompt>').selection)

    with pytest.raises(InvalidValue, match="one of several others or behind stand-ins, or more than 4096 tokens"):
        lessons_of(PLAIN, lambda rng, held_out: drawn).lesson(0)
