"""A linked prompt serves a loop of the caller: transformers' `generate` and the model give what the engine gives."""

from functools import cache
from typing import Any

import pytest
import torch

from promptcache.diagnostics import InvalidValue, UnsupportedModel
from promptcache.engine import Engine
from promptcache.model import Model
from promptcache.testing.byte_tokenizer import ByteTokenizer
from tests.families import WINDOW, random_model, usual_families

SCHEMA = """<schema name="travel">You plan trips.
<module name="plan">Stay <parameter name="days" length="9" placeholder="n days"/>. Enjoy.</module>
<union name="city"><module name="miami">Miami has beaches.</module><module name="paris">Paris has soup.</module></union>
<module name="end">Answer.</module></schema>"""
PROMPT = '<prompt schema="travel"><plan days="nine"/><paris/>Where to?</prompt>'
CACHED = '<prompt schema="travel"><end/></prompt>'
LONG = '<prompt schema="travel"><end/>What else is there to see?</prompt>'
NUM_TOKENS = 8
WINDOWED = ["mistral", "gemma2", "gemma3, text", "gpt-oss"]


@cache
def engine_of(family: str, positions: str | None = None) -> Engine:
    engine = Engine(random_model(family, torch.float64), ByteTokenizer(), positions=positions)
    engine.add_schema(SCHEMA)
    return engine


def generated(model: Model, inputs: dict[str, Any], **options: Any) -> tuple[int, ...]:
    given = {"do_sample": False, "max_new_tokens": NUM_TOKENS, "eos_token_id": None, **options}
    num_given = inputs["input_ids"].shape[1]
    return tuple(model.hf.generate(**inputs, **given)[0, num_given:].tolist())


@torch.no_grad()
def looped(
    model: Model, inputs: dict[str, Any], num_tokens: int = NUM_TOKENS, *, masked: bool = False
) -> tuple[int, ...]:
    """Return the greedy tokens of a forward loop, written as docs/python.md writes it, perhaps with a growing mask."""
    mask, cache, token_ids = inputs["attention_mask"], inputs["past_key_values"], list[int]()
    output = model.hf(**inputs)
    while len(token_ids) < num_tokens:
        token = output.logits[:, -1:].argmax(-1)
        token_ids.append(int(token))
        mask = torch.cat([mask, mask.new_ones((1, 1))], dim=1)
        masks = {"attention_mask": mask} if masked else {}
        output = model.hf(input_ids=token, past_key_values=cache, **masks)
    return tuple(token_ids)


@pytest.mark.parametrize("prompt", [CACHED, LONG])
@pytest.mark.parametrize("family", usual_families())
def test_own_loops_give_the_engines_answer(family: str, prompt: str) -> None:
    engine = engine_of(family)
    expected = engine.generate(prompt, do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=[]).token_ids

    assert generated(engine.model, engine.link(prompt)) == expected
    assert looped(engine.model, engine.link(prompt)) == expected
    assert looped(engine.model, engine.link(prompt), masked=True) == expected


@pytest.mark.parametrize("prompt", [PROMPT, CACHED, '<prompt schema="travel">a</prompt>'])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_generate_continues_a_generation(family: str, prompt: str) -> None:
    """`generate` over all tokens so far goes on with its answer; without a new token, it refuses."""
    engine = engine_of(family)
    expected = engine.generate(prompt, do_sample=False, max_new_tokens=NUM_TOKENS, eos_token_id=[]).token_ids
    inputs = engine.link(prompt)
    cache, hf, num_given = inputs["past_key_values"], engine.model.hf, inputs["input_ids"].shape[1]
    options = {"do_sample": False, "eos_token_id": None, "past_key_values": cache}
    made = hf.generate(**{**inputs, **options}, max_new_tokens=3)

    with pytest.raises(InvalidValue, match=r"no tokens are left to feed|position_ids="):
        hf.generate(input_ids=made[:, :-1], max_new_tokens=2, **options)
    made = hf.generate(input_ids=made, max_new_tokens=2, **options)
    made = hf.generate(input_ids=made, attention_mask=torch.ones_like(made), max_new_tokens=NUM_TOKENS - 5, **options)
    assert tuple(made[0, num_given:].tolist()) == expected


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_second_turn_continues_the_same_cache(family: str) -> None:
    """A question behind the first answer gets the same answer with given positions, without, and from `generate`."""
    engine = engine_of(family)
    question = torch.tensor([list(b"and then?")])
    options: dict[str, Any] = {"do_sample": False, "eos_token_id": None}

    def first_turn() -> tuple[Any, torch.Tensor]:
        inputs = engine.link(PROMPT)
        made = engine.model.hf.generate(**inputs, **options, max_new_tokens=4)
        return inputs["past_key_values"], torch.cat([made, question], dim=1)

    cache, whole = first_turn()
    new_ids, expected, position = whole[:, cache.get_seq_length() :], list[int](), engine.plan(PROMPT).stop + 3
    with torch.no_grad():
        while len(expected) < 4:
            positions = torch.arange(position, position + new_ids.shape[1])[None]
            output = engine.model.hf(input_ids=new_ids, position_ids=positions, past_key_values=cache)
            new_ids, position = output.logits[:, -1:].argmax(-1), position + new_ids.shape[1]
            expected.append(int(new_ids))
    cache, whole = first_turn()
    made = engine.model.hf.generate(whole, **options, past_key_values=cache, max_new_tokens=4)
    assert made[0, whole.shape[1] :].tolist() == expected
    cache, whole = first_turn()
    found, new_ids = list[int](), whole[:, cache.get_seq_length() :]
    with torch.no_grad():
        while len(found) < 4:
            new_ids = engine.model.hf(input_ids=new_ids, past_key_values=cache).logits[:, -1:].argmax(-1)
            found.append(int(new_ids))
    assert found == expected


def test_what_cannot_be_right_is_refused() -> None:
    """Other positions, and masks of another length, raise an error; the cache is as before."""
    engine = engine_of("llama")
    inputs = engine.link(PROMPT)
    cache = inputs["past_key_values"]
    held, last = cache.get_seq_length(), inputs["input_ids"][:, -1:]
    other = torch.full_like(inputs["input_ids"], 7)
    for wrong, message in (
        ({"position_ids": torch.tensor([[7]])}, r"position_ids=\[\[7\]\], and this cache goes on with \[\[\d+"),
        ({"attention_mask": torch.ones(1, held + 2)}, r"attention_mask has \d+ columns"),
        ({"attention_mask": torch.ones(1, held)}, r"attention_mask has \d+ columns"),
        ({"input_ids": other, "attention_mask": torch.ones_like(other)}, r"attention_mask has \d+ columns"),
    ):
        with pytest.raises(InvalidValue, match=message):
            engine.model.hf(**{"input_ids": last, "past_key_values": cache, **wrong})
        assert cache.get_seq_length() == held
    expected = engine.generate(PROMPT, do_sample=False, max_new_tokens=4, eos_token_id=[]).token_ids
    assert looped(engine.model, inputs, 4) == expected


@pytest.mark.parametrize("family", WINDOWED)
def test_windows(family: str) -> None:
    """Under sliding windows, a prompt is linked if its last window of tokens has no gap; others are refused."""
    engine = engine_of(family, "fixed")
    near = '<prompt schema="travel"><plan days="nine"/><end/>?</prompt>'
    full = '<prompt schema="travel"><plan days="nine days"/>?</prompt>'  # an argument between cached tokens
    options = {"max_new_tokens": 2 * WINDOW, "do_sample": False}

    for prompt in (LONG, full):
        expected = engine.generate(prompt, eos_token_id=[], **options).token_ids
        assert generated(engine.model, engine.link(prompt), **options) == expected
    with pytest.raises(
        UnsupportedModel, match=r"sliding windows of 12 positions, .* no token between positions \d+ and"
    ):
        engine.link(near)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_inputs_serve_one_generation(family: str) -> None:
    """Used inputs cannot be fed again. A generation changes neither stored KV nor other inputs."""
    engine = engine_of(family)
    other, inputs = engine.link(PROMPT), engine.link(PROMPT)
    expected = generated(engine.model, inputs)

    with pytest.raises(InvalidValue, match=r"attention_mask has|position_ids="):
        generated(engine.model, inputs)
    with pytest.raises(InvalidValue, match="attention_mask has"):
        engine.model.hf(**inputs)
    assert generated(engine.model, other) == expected
    assert generated(engine.model, engine.link(PROMPT)) == expected


def test_a_failed_pass_leaves_the_cache_as_it_was() -> None:
    """After a forward pass that raised in the first layer, the same inputs give the answer."""
    engine = engine_of("llama")
    expected = engine.generate(PROMPT, do_sample=False, max_new_tokens=4, eos_token_id=[]).token_ids
    inputs = engine.link(PROMPT)

    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.no_grad(),
        pytest.raises(InvalidValue, match="enabled=False"),
    ):
        engine.model.hf(**inputs)

    assert looped(engine.model, inputs, 4) == expected
