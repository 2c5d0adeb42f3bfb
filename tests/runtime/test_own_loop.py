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
from promptcache.testing.cached import distance
from tests import strategies
from tests.conftest import law_examples
from tests.families import WINDOW, random_model, usual_families
from tests.laws.service import default_model, serve

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
def engine_of(family: str, positions: str | None = None) -> Engine:
    """Return an engine with a random model of a family in float64."""
    engine = Engine(random_model(family, torch.float64), ByteTokenizer(), positions=positions)
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


@torch.no_grad()
def looped_without_positions(
    model: Model, inputs: ModelInputs, num_tokens: int = NUM_TOKENS, *, masked: bool = False
) -> tuple[int, ...]:
    """Return the greedy tokens of the loop that users of transformers write: no positions, perhaps a growing mask."""
    new_ids, mask = inputs["input_ids"], inputs["attention_mask"]
    cache, token_ids = inputs["past_key_values"], list[int]()
    while len(token_ids) < num_tokens:
        masks = {"attention_mask": mask} if masked else {}
        output = model.hf(input_ids=new_ids, past_key_values=cache, **masks)
        new_ids = output.logits[:, -1:].argmax(-1)
        token_ids.append(int(new_ids))
        mask = torch.cat([mask, mask.new_ones((1, 1))], dim=1)
    return tuple(token_ids)


def counts_stored(inputs: ModelInputs) -> bool:
    """Return whether transformers counts the stored tokens of this cache."""
    return isinstance(inputs["past_key_values"], DynamicCache)


def missing_from(cache: Any, token_ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return new tokens with the mask that tells `generate` that the cache has none of them."""
    return {"input_ids": token_ids, "attention_mask": torch.ones(1, cache.get_seq_length() + token_ids.shape[1])}


@pytest.mark.parametrize("prompt", [CACHED, LONG])
@pytest.mark.parametrize("family", usual_families())
def test_own_loops_give_the_engines_answer(family: str, prompt: str) -> None:
    """For every family, `generate` and a forward loop over linked inputs give the answer of the engine."""
    engine = engine_of(family)
    expected = engine.generate(prompt, do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=[]).token_ids

    assert generated(engine.model, engine.link(prompt)) == expected
    assert looped(engine.model, engine.link(prompt)) == expected
    assert looped_without_positions(engine.model, engine.link(prompt)) == expected
    assert looped_without_positions(engine.model, engine.link(prompt), masked=True) == expected
    if engine.model.facts.window is None:
        assert generated(engine.model, engine.to_dynamic_cache(prompt)) == expected
        assert looped(engine.model, engine.to_dynamic_cache(prompt)) == expected
        assert looped_without_positions(engine.model, engine.to_dynamic_cache(prompt)) == expected
        assert looped_without_positions(engine.model, engine.to_dynamic_cache(prompt), masked=True) == expected


@pytest.mark.parametrize("way", ["link", "to_dynamic_cache"])
@pytest.mark.parametrize("prompt", [PROMPT, CACHED, '<prompt schema="travel">a</prompt>'])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_generate_continues_a_generation(family: str, prompt: str, way: str) -> None:
    """`generate` over the tokens that it made goes on with its answer; if the cache counts other tokens, it refuses."""
    engine = engine_of(family)
    expected = engine.generate(prompt, do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=[]).token_ids
    inputs = getattr(engine, way)(prompt)
    cache, hf = inputs["past_key_values"], engine.model.hf
    options = {"do_sample": False, "eos_token_id": None, "past_key_values": cache}
    num_given = inputs["input_ids"].shape[1]
    made = hf.generate(**{**inputs, **options}, max_new_tokens=3)

    if counts_stored(inputs):
        with pytest.raises(InvalidValue, match=r"no tokens are left to feed|position_ids="):
            hf.generate(input_ids=made, max_new_tokens=2, **options)
        more = hf.generate(**missing_from(cache, made[:, -1:]), max_new_tokens=NUM_TOKENS - 3, **options)
        made = torch.cat([made[:, :-1], more], dim=1)
    else:
        made = hf.generate(input_ids=made, max_new_tokens=2, **options)
        made = hf.generate(
            input_ids=made, attention_mask=torch.ones_like(made), max_new_tokens=NUM_TOKENS - 5, **options
        )
    assert tuple(made[0, num_given:].tolist()) == expected


@pytest.mark.parametrize("way", ["link", "to_dynamic_cache"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_second_turn_continues_the_same_cache(family: str, way: str) -> None:
    """A question behind the first answer gets the same answer with given positions, without, and from `generate`."""
    engine = engine_of(family)
    question = torch.tensor([list(b"and then?")])
    options: dict[str, Any] = {"do_sample": False, "eos_token_id": None}

    def first_turn() -> tuple[Any, int, torch.Tensor]:
        inputs = getattr(engine, way)(PROMPT)
        made = engine.model.hf.generate(**inputs, **options, max_new_tokens=4)
        new_ids = torch.cat([made[:, -1:], question], dim=1)  # the last token of an answer is not fed
        return inputs["past_key_values"], inputs.next_position + 3, new_ids

    cache, position, new_ids = first_turn()
    expected = list[int]()
    with torch.no_grad():
        while len(expected) < 4:
            stop = position + new_ids.shape[1]
            output = engine.model.hf(
                input_ids=new_ids, position_ids=torch.arange(position, stop)[None], past_key_values=cache
            )
            new_ids, position = output.logits[:, -1:].argmax(-1), stop
            expected.append(int(new_ids))
    cache, _, new_ids = first_turn()
    made = engine.model.hf.generate(**missing_from(cache, new_ids), **options, past_key_values=cache, max_new_tokens=4)
    assert made[0, new_ids.shape[1] :].tolist() == expected
    cache, _, new_ids = first_turn()
    found = list[int]()
    with torch.no_grad():
        while len(found) < 4:
            new_ids = engine.model.hf(input_ids=new_ids, past_key_values=cache).logits[:, -1:].argmax(-1)
            found.append(int(new_ids))
    assert found == expected


@pytest.mark.parametrize("way", ["link", "to_dynamic_cache"])
def test_what_cannot_be_right_is_refused(way: str) -> None:
    """Other positions, and masks of another length, raise an error; the cache is as before."""
    engine = engine_of("llama")
    inputs = getattr(engine, way)(PROMPT)
    cache, num_new = inputs["past_key_values"], inputs["input_ids"].shape[1]
    given = {"input_ids": inputs["input_ids"], "past_key_values": cache}
    for wrong, message in (
        ({"position_ids": inputs["position_ids"] + 1}, r"position_ids=\[\[\d+.*, and this cache goes on with \[\[\d+"),
        ({"attention_mask": torch.ones(1, num_new + cache.get_seq_length() + 1)}, r"attention_mask has \d+ columns"),
        ({"attention_mask": torch.ones(1, cache.get_seq_length())}, r"attention_mask has \d+ columns"),
    ):
        held = cache.get_seq_length()
        with pytest.raises(InvalidValue, match=message):
            engine.model.hf(**given, **wrong)
        assert cache.get_seq_length() == held
    if way == "link":
        with pytest.raises(InvalidValue, match="attention_mask has zeros"):
            engine.model.hf(**given, attention_mask=torch.zeros(1, num_new))
    expected = engine.generate(PROMPT, do_sample=False, max_new_tokens=4, eos_token_id=[]).token_ids
    assert looped_without_positions(engine.model, inputs, 4) == expected


def test_another_model_cannot_continue_gaps() -> None:
    """Another model with the same weights refuses a cache with gaps, and continues one without, if it is a copy."""
    engine, other = engine_of("llama", "fixed"), random_model("llama", torch.float64)
    full = '<prompt schema="travel"><plan days="nine days"/>?</prompt>'
    expected = engine.generate(full, do_sample=False, max_new_tokens=1, eos_token_id=[]).token_ids

    for inputs in (engine.link(PROMPT), engine.link(full), engine.to_dynamic_cache(PROMPT)):
        with pytest.raises(InvalidValue, match=r"belongs to engine\.model\.hf"), torch.no_grad():
            other(**inputs)
    with torch.no_grad():
        output = other(**engine.to_dynamic_cache(full))
    assert (int(output.logits[0, -1].argmax()),) == expected


def test_rejected_drafts_keep_positions() -> None:
    """Drafts that are rejected continue at the positions of the cache."""
    engine = engine_of("llama")
    no_token = engine.model.num_known_tokens  # transformers 5.4 has no drafts without an end token
    given = {"do_sample": False, "max_new_tokens": NUM_TOKENS, "eos_token_id": no_token}
    expected = engine.generate(PROMPT, **given).token_ids
    inputs = engine.link(PROMPT)
    num_given = inputs["input_ids"].shape[1]

    made = engine.model.hf.generate(
        input_ids=inputs["input_ids"],
        past_key_values=inputs["past_key_values"],
        prompt_lookup_num_tokens=3,
        **given,
    )
    assert tuple(made[0, num_given:].tolist()) == expected


@pytest.mark.parametrize("way", WAYS)
@given(data=st.data(), schema=strategies.schemas(), tokenizer=strategies.TOKENIZERS)
@settings(max_examples=law_examples(0.2))
def test_own_loops_give_the_answer_of_random_prompts(
    way: Way, data: st.DataObject, schema: CheckedSchema, tokenizer: ByteTokenizer
) -> None:
    """Over random schemas and prompts, own loops give the engine's tokens, and the model its logits."""
    service = serve(schema, default_model(), tokenizer=tokenizer)
    selection = data.draw(strategies.prompts(schema))
    tokens = service.plan(selection).tokens
    expected = service.tokens(selection, NUM_TOKENS)

    assert generated(service.model, way(tokens, service.executor)) == expected
    assert looped(service.model, way(tokens, service.executor)) == expected
    assert looped_without_positions(service.model, way(tokens, service.executor)) == expected
    with torch.no_grad():
        logits = service.model.hf(**way(tokens, service.executor)).logits[0]
    assert distance(logits, service.executor.logits(tokens)[-len(logits) :]) < service.tolerance


@pytest.mark.parametrize("family", WINDOWED)
def test_windows_over_a_dynamic_cache(family: str) -> None:
    """Under sliding windows, a `DynamicCache` serves prompts whose last window of tokens has no gap; others are refused."""
    engine = engine_of(family, "fixed")
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
    assert isinstance(copied["past_key_values"], DynamicCache)
    assert copied["past_key_values"].get_seq_length() == plan.num_reused_tokens + plan.num_new_tokens - 1
    assert copied.copied_bytes == engine.model.shape.token_bytes * copied["past_key_values"].get_seq_length()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
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
    """Beams over linked inputs are those over a copied cache, which gets its rows first, as docs/python.md says."""
    options: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 6, "do_sample": False}
    engine = engine_of("llama")
    copied = engine.to_dynamic_cache(PROMPT)
    copied["past_key_values"].batch_repeat_interleave(3)

    found, expected = (generated(engine.model, each, **options) for each in (engine.link(PROMPT), copied))

    assert found == expected
    assert found != generated(engine.model, engine.link(PROMPT), **{**options, "num_beams": 1})


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
