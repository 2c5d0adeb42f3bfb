"""A linked prompt serves a loop of the caller: transformers' `generate` and the model give what the engine gives."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache

from promptcache.diagnostics import ContextLengthExceeded, InvalidValue, UnsupportedModel
from promptcache.engine import Engine
from promptcache.language import CheckedSchema
from promptcache.layout import RequestTokens
from promptcache.runtime import Executor, Model, ModelInputs, dynamic_cache_inputs, linked_inputs
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.service import default_model, distance, serve
from tests import strategies
from tests.conftest import law_examples
from tests.families import FAMILIES, WINDOW, random_model

SCHEMA = """<schema name="travel">You plan trips.
<module name="plan">Stay <parameter name="days" length="9" placeholder="n days"/>. Enjoy.</module>
<union name="city"><module name="miami">Miami has beaches.</module><module name="paris">Paris has soup.</module></union>
<module name="end">Answer.</module></schema>"""
PROMPT = '<prompt schema="travel"><plan days="nine"/><paris/>Where to?</prompt>'
CACHED = '<prompt schema="travel"><end/></prompt>'
LONG = '<prompt schema="travel"><end/>What else is there to see?</prompt>'
NUM_TOKENS = 8
WINDOWED = ["mistral", "gemma2", "gemma3, text", "gpt-oss"]
WAYS = [linked_inputs, dynamic_cache_inputs]

Way = Callable[[RequestTokens, Executor], ModelInputs]


@cache
def engine_of(family: str) -> Engine:
    """Return an engine with a random model of a family in float64."""
    engine = Engine(random_model(family, torch.float64), ByteTokenizer())
    engine.add_schema(SCHEMA)
    return engine


def generated(model: Model, inputs: ModelInputs, **options: Any) -> tuple[int, ...]:
    """Return the greedy tokens that transformers' `generate` appends."""
    given = {"do_sample": False, "max_new_tokens": NUM_TOKENS, "eos_token_id": None, **options}
    num_given = inputs["input_ids"].shape[1]
    return tuple(model.hf.generate(**inputs, **given)[0, num_given:].tolist())


@torch.no_grad()
def looped(model: Model, inputs: ModelInputs, num_tokens: int = NUM_TOKENS) -> tuple[int, ...]:
    """Return the greedy tokens of a forward loop, written as docs/python.md writes it."""
    position = inputs.next_position
    output = model.hf(**inputs)
    token_ids: list[int] = []
    while len(token_ids) < num_tokens:
        token = output.logits[:, -1:].argmax(-1)
        token_ids.append(int(token))
        output = model.hf(
            input_ids=token,
            position_ids=torch.tensor([[position]]),
            past_key_values=inputs["past_key_values"],
        )
        position += 1
    return tuple(token_ids)


@pytest.mark.parametrize("prompt", [PROMPT, CACHED, LONG])
@pytest.mark.parametrize("family", FAMILIES)
def test_own_loops_give_the_engines_answer(family: str, prompt: str) -> None:
    """For every family, `generate` and a forward loop over linked inputs give the answer of the engine."""
    engine = engine_of(family)
    expected = engine.generate(prompt, do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=[]).token_ids

    assert generated(engine.model, engine.link(prompt)) == expected
    assert looped(engine.model, engine.link(prompt)) == expected
    if engine.model.facts.window is None:
        assert generated(engine.model, engine.to_dynamic_cache(prompt)) == expected
        assert looped(engine.model, engine.to_dynamic_cache(prompt)) == expected


@pytest.mark.parametrize("way", WAYS)
@given(data=st.data(), schema=strategies.schemas())
@settings(max_examples=law_examples(0.2))
def test_own_loops_give_the_answer_of_random_prompts(way: Way, data: st.DataObject, schema: CheckedSchema) -> None:
    """Over random schemas and prompts, own loops give the engine's tokens, and the model its logits."""
    service = serve(schema, default_model())
    selection = data.draw(strategies.prompts(schema))
    tokens = service.plan(selection).tokens
    expected = service.tokens(selection, NUM_TOKENS)

    assert generated(service.model, way(tokens, service.executor)) == expected
    assert looped(service.model, way(tokens, service.executor)) == expected
    with torch.no_grad():
        logits = service.model.hf(**way(tokens, service.executor)).logits[0]
    assert distance(logits, service.executor.logits(tokens)[-len(logits) :]) < service.tolerance


@pytest.mark.parametrize("family", WINDOWED)
def test_windows_over_a_dynamic_cache(family: str) -> None:
    """Under sliding windows, a `DynamicCache` serves prompts whose last window of tokens has no gap; others are refused."""
    engine = engine_of(family)
    near = '<prompt schema="travel"><plan days="nine"/><end/>?</prompt>'
    full = '<prompt schema="travel"><plan days="nine days"/>?</prompt>'  # an argument between cached tokens
    options = {"max_new_tokens": 2 * WINDOW, "do_sample": False}

    for prompt in (LONG, full):
        expected = engine.generate(prompt, eos_token_id=[], **options).token_ids
        assert generated(engine.model, engine.to_dynamic_cache(prompt), **options) == expected
    with pytest.raises(
        UnsupportedModel, match=r"sliding windows of 12 positions, .* no token between positions \d+ and"
    ):
        engine.to_dynamic_cache(near)


def test_linked_inputs_have_what_generate_takes() -> None:
    """The keys are four, tensors are on the model's device, and the mask covers the cache and the new tokens."""
    engine = engine_of("llama")
    plan = engine.plan(PROMPT)
    linked, copied = engine.link(PROMPT), engine.to_dynamic_cache(PROMPT)

    for inputs, num_new in ((linked, plan.num_new_tokens), (copied, 1)):
        assert list(inputs) == ["input_ids", "position_ids", "attention_mask", "past_key_values"]
        assert inputs["input_ids"].shape == inputs["position_ids"].shape == (1, num_new)
        assert inputs["attention_mask"].shape == (1, inputs["past_key_values"].get_seq_length() + num_new)
        assert inputs.next_position == plan.stop
    assert type(copied["past_key_values"]) is DynamicCache
    assert copied["past_key_values"].get_seq_length() == plan.num_reused_tokens + plan.num_new_tokens - 1
    assert copied.copied_bytes == engine.model.shape.token_bytes * copied["past_key_values"].get_seq_length()


@pytest.mark.parametrize("family", ["llama", "gptj (concatenated)"])
def test_inputs_serve_one_generation(family: str) -> None:
    """Used inputs can be read and not fed again. A generation changes neither stored KV nor other inputs."""
    engine = engine_of(family)
    for link in (engine.link, engine.to_dynamic_cache):
        other, inputs = link(PROMPT), link(PROMPT)
        expected = generated(engine.model, inputs)

        with pytest.raises(InvalidValue, match=r"these inputs were used: their cache holds \d+ more tokens"):
            generated(engine.model, inputs)
        with pytest.raises(InvalidValue, match="these inputs were used"):
            engine.model.hf(**inputs)
        assert inputs["past_key_values"].get_seq_length() > 0
        assert inputs["input_ids"].shape == inputs["position_ids"].shape == other["input_ids"].shape
        assert generated(engine.model, other) == expected
        assert generated(engine.model, link(PROMPT)) == expected


def test_inputs_take_the_options_of_generate() -> None:
    """Beams over linked inputs are those of the engine; a copied cache gets its rows first, as docs/python.md says."""
    options: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 6, "do_sample": False}
    llama, gptj = engine_of("llama"), engine_of("gptj (concatenated)")

    for engine, link, copied in (
        (llama, llama.link, False),
        (llama, llama.to_dynamic_cache, True),
        (gptj, gptj.link, True),
    ):
        inputs = link(PROMPT)
        if copied:
            inputs["past_key_values"].batch_repeat_interleave(3)
        expected = engine.generate(PROMPT, **options, eos_token_id=[]).token_ids
        assert generated(engine.model, inputs, **options) == expected


def test_a_prompt_without_room_is_refused() -> None:
    """A prompt that fills the context is refused, and so is pickling."""
    small = Engine(random_model("gpt2", torch.float64), ByteTokenizer(), context_length=200)
    small.add_schema(SCHEMA)
    full = f'<prompt schema="travel">{"x" * 200}</prompt>'

    for link in (small.link, small.to_dynamic_cache):
        with pytest.raises(ContextLengthExceeded):
            link(full)
    with pytest.raises(InvalidValue, match="cannot be pickled"):
        pickle.dumps(small.link(PROMPT))
