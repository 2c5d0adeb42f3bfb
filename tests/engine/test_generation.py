"""Options of generation: the same meaning from every source, or refused by name."""

import copy
import queue
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel
from transformers.generation import utils as generation_utils

from promptcache.diagnostics import InvalidGeneration
from promptcache.engine import Engine
from promptcache.model import Model, used_tokens
from promptcache.testing.tiny_model import tiny_model
from tests.conftest import law_examples
from tests.engine.asking import LONGER, PROMPT, WAYS, answered, engine_of
from tests.families import random_model

FULL = '<prompt schema="travel"><plan days="n days  "/>Where to?</prompt>'
GREEDY: dict[str, Any] = {"do_sample": False}
SHORT: dict[str, Any] = {"max_new_tokens": 12, **GREEDY}
ENGINE = engine_of()
PLAIN = ENGINE.generate(PROMPT, **SHORT).token_ids


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("use_cache", False),
        ("cache_implementation", "static"),
        ("prefill_chunk_size", 4),
        ("min_length", 30),
        ("max_length", 20),
        ("token_healing", True),
        ("assistant_early_exit", 1),
    ],
)
def test_a_models_own_settings_leave_linked_kv_alone(name: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint's generation configuration cannot switch off the cache, count its tokens or draft some."""
    engine = engine_of()
    setattr(engine.model.hf.generation_config, name, value)
    told: list[str] = []
    monkeypatch.setattr(generation_utils.logger, "warning", told.append)

    answer = engine.generate(PROMPT, logprobs=0, min_new_tokens=2, **SHORT)

    assert answer.token_ids == tuple(each.token_id for each in answer.logprobs or ()) == PLAIN
    assert engine.generate_batch([PROMPT, LONGER], **SHORT)[0].token_ids == PLAIN
    assert told == []


@pytest.mark.parametrize("way", ["generate", "batch"])
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0, "do_sample": True},
        {"generation_config": GenerationConfig(temperature=0.0, do_sample=True)},
        {"temperature": 0, "do_sample": True, "typical_p": 0.9},
        {},
    ],
    ids=["keyword", "configuration", "alone", "the model's own"],
)
def test_temperature_0_is_greedy(options: dict[str, Any], way: str) -> None:
    """`temperature=0` is greedy decoding, whatever answers the prompt. A temperature of the caller wins."""
    engine = engine_of()
    if not options:
        engine.model.hf.generation_config.update(temperature=0.0, do_sample=True)

    assert answered(engine, PROMPT, way, **{"max_new_tokens": 12, **options}).token_ids == PLAIN
    hot = {"temperature": 5.0, "top_k": 0, "do_sample": True, "seed": 0, "max_new_tokens": 12}
    assert answered(engine, PROMPT, way, **{**options, **hot}).token_ids != PLAIN


def test_keywords_stand_above_a_configuration() -> None:
    """Keywords win over a configuration, and that over the one of the model, as in transformers."""
    given = GenerationConfig(max_new_tokens=5, max_length=3, eos_token_id=PLAIN[3], use_cache=False, **GREEDY)
    engine = engine_of()
    engine.model.hf.generation_config.update(eos_token_id=PLAIN[0], max_new_tokens=2)

    assert engine.generate(PROMPT, generation_config=given).token_ids == PLAIN[:4]
    cut = engine.generate(PROMPT, max_new_tokens=3, generation_config=given, eos_token_id=[])
    assert cut.token_ids == PLAIN[:3]
    assert engine.generate(PROMPT, max_time=0.0, generation_config=given).token_ids == PLAIN[:1]


SEVERAL = {"do_sample": True, "num_return_sequences": 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"generation_config": GenerationConfig(max_length=9)}, "max_new_tokens"),
        ({"generation_config": GenerationConfig(min_length=9)}, "min_new_tokens"),
        ({"generation_config": GenerationConfig(num_beams=4)}, r"engine\.link\(prompt\), num_beams=4"),
        ({"generation_config": {"num_beams": 2}}, "a GenerationConfig is expected"),
        ({"cache_implementation": "static"}, "cache_implementation"),
        ({"num_beams": 4}, r"engine\.model\.hf\.generate\(\*\*engine\.link\(prompt\), num_beams=4\)"),
        ({"assistant_model": tiny_model().hf}, "assistant_model=…"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3"),
        ({"custom_generate": lambda *_: None}, "custom_generate=…"),
        ({"output_scores": True}, "output_scores=True"),
        ({"guidance_scale": 1.5}, "guidance_scale=1.5"),
        ({"negative_prompt_ids": torch.ones(1, 2)}, "negative_prompt_ids=…"),
        ({"num_return_sequences": 3, "do_sample": False}, "needs do_sample=True"),
        ({**SEVERAL, "logprobs": 1}, "'logprobs' does not work with 'num_return_sequences'"),
        ({"is_assistant": True}, "'is_assistant' does not work here"),
        ({"generation_config": GenerationConfig(is_assistant=True)}, "'is_assistant' does not work here"),
        ({"logit_bias": {263: 2}}, "logit_bias has token 263, and the model has tokens 0 to 262"),
        *(({name: 1}, name) for name in ("input_ids", "position_ids", "past_key_values", "max_length")),
        ({"prefill_chunk_size": 1}, "prefill_chunk_size"),
    ],
)
def test_what_cannot_be_honoured_is_refused(options: dict[str, Any], message: str) -> None:
    """Unsupported options, and those that the prompt decides, are refused by name, from every source."""
    with pytest.raises(InvalidGeneration, match=message):
        ENGINE.generate(PROMPT, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (SEVERAL, "one sequence can be streamed; for 'num_return_sequences' above 1 use generate"),
        ({"generation_config": GenerationConfig(**SEVERAL)}, "one sequence"),
        ({"streamer": object()}, "streamer"),
    ],
)
def test_what_cannot_be_streamed_is_refused(options: dict[str, Any], message: str) -> None:
    """Tokens of several sequences would be mixed. A second streamer is refused, too."""
    for stream in (partial(ENGINE.stream, PROMPT), partial(ENGINE.chat().stream, "Hi")):
        with pytest.raises(InvalidGeneration, match=message):
            stream(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"encoder_repetition_penalty": 1.7},
        {"exponential_decay_length_penalty": (2, 1.5), "eos_token_id": 101},
        {"forced_eos_token_id": 101, "min_new_tokens": 4},
    ],
    ids=" ".join,
)
def test_penalties_are_those_of_transformers_over_the_whole_text(options: dict[str, Any]) -> None:
    """Where a prompt is exact and has no gaps, options that the law of requests lacks give the answer of transformers."""
    given = {"max_new_tokens": 8, "eos_token_id": [*ENGINE.end_ids], **options, **GREEDY}

    found, again = ENGINE.generate_batch([FULL, FULL], **given)

    ids = torch.tensor([[token.token_id for token in used_tokens(found.plan.tokens)]])
    stock = copy.deepcopy(ENGINE.model.hf)
    stock.set_attn_implementation("eager")
    made = stock.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **given)
    assert found.level == "exact"
    assert found.token_ids == again.token_ids == tuple(made[0, ids.shape[1] :].tolist())


def test_several_sequences_have_the_seeds_from_the_given_one_on() -> None:
    options = {"do_sample": True, "max_new_tokens": 6}
    alone = [[ENGINE.generate(each, seed=seed, **options).text for seed in (5, 6)] for each in (PROMPT, LONGER)]

    together = ENGINE.generate_batch([PROMPT, LONGER], seed=5, num_return_sequences=2, **options)

    assert [[each.text, *each.alternatives] for each in together] == alone


class Broken:
    """A streamer, logits processor and stopping criterion that raises."""

    def put(self, *_: object, **__: object) -> Any:
        raise ValueError("mine")

    __call__ = put

    def end(self) -> None: ...


WRONG: list[dict[str, Any]] = [
    {"streamer": Broken()},
    {"logits_processor": [lambda ids, scores: Broken()(ids)]},
    {"stopping_criteria": [Broken()]},
]


def test_an_error_of_the_callers_code_ends_its_request_only() -> None:
    """It is raised as it is; the other requests of a service go on."""
    good, *bad = (queue.SimpleQueue[Any]() for _ in range(4))
    with ENGINE.service() as service:
        service.submit(PROMPT, good.put, **SHORT)
        for items, options in zip(bad, WRONG, strict=True):
            service.submit(PROMPT, items.put, **options, **SHORT)
        heard = [good.get(timeout=60) for _ in range(13)]
    assert (tuple(heard[:12]), heard[12].token_ids) == (PLAIN, PLAIN)
    for items, options in zip(bad, WRONG, strict=True):
        error = next(each for each in iter(items.get, None) if not isinstance(each, int))
        assert repr(error) == "ValueError('mine')"
        with pytest.raises(ValueError, match=r"^mine$"):
            ENGINE.generate(PROMPT, **options)


def test_rows_with_less_room_are_as_alone() -> None:
    config = GPT2Config(vocab_size=263, n_embd=16, n_layer=1, n_head=2, n_positions=128)
    modules = f'<module name="a">aaaa</module><module name="b">{"b" * 80}</module>'
    engine = engine_of(GPT2LMHeadModel(config), schema=f'<schema name="long">{modules}</schema>')
    prompts = ['<prompt schema="long"><a/>xy</prompt>', '<prompt schema="long"><a/><b/>xyz</prompt>']

    together = engine.generate_batch(prompts, eos_token_id=[], **GREEDY)

    for prompt, found in zip(prompts, together, strict=True):
        assert found.token_ids == engine.generate(prompt, eos_token_id=[], **GREEDY).token_ids
        assert (found.finish_reason, found.plan.stop + len(found.token_ids)) == ("length", 128)


def in_float32() -> Engine:
    return engine_of(Model(random_model("llama", torch.float32)))


def autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize("mode", [autocast, torch.inference_mode])
@pytest.mark.parametrize("is_made_inside", [False, True])
def test_modes_of_torch_leave_no_trace(mode: Callable[[], Any], is_made_inside: bool) -> None:
    """Inside of `torch.autocast` and `torch.inference_mode`, an engine computes and stores the KV that it does outside."""
    with mode() if is_made_inside else nullcontext():
        engine = in_float32()

    with mode():
        inside = engine.generate(LONGER, **SHORT)
    outside = engine.generate(PROMPT, **SHORT)
    with mode():
        together = engine.generate_batch([PROMPT, LONGER], **SHORT)
        logits = engine.logits(PROMPT)

    assert engine.model.shape.dtype == logits.dtype == torch.float32
    assert torch.allclose(engine.reference(PROMPT), logits, atol=1e-5)
    expected = [in_float32().generate(each, **SHORT).token_ids for each in (PROMPT, LONGER)]
    assert [outside.token_ids, inside.token_ids] == [each.token_ids for each in together] == expected


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        *(("max_tokens", "max_new_tokens"), ("top_logprobs", "logprobs"), ("stop", "stop_strings"), ("user", "salt")),
        *(("n", "num_return_sequences"), ("random_seed", "seed"), ("stream", "engine.stream")),
        *(("stop_token_ids", "eos_token_id"), ("ignore_eos", "eos_token_id=None")),
        *(("temprature", "temperature"), ("sed", "seed"), ("template_kwarg", "template_kwargs")),  # mistyped
    ],
)
def test_names_of_other_libraries_are_told_apart(named: str, meant: str) -> None:
    with pytest.raises(InvalidGeneration, match=f"no option '{named}' .did you mean {meant}"):
        ENGINE.generate(PROMPT, **{named: 5})


def test_settings_that_are_not_used_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Caches and lengths of a generation configuration are named: the model's by the engine, a given one by the answer."""
    model = tiny_model()
    model.hf.generation_config = GenerationConfig(cache_implementation="static", max_length=77, temperature=0.5)
    given = GenerationConfig(use_cache=False, max_new_tokens=1)
    for _ in range(2):
        engine_of(model).generate(PROMPT, generation_config=given)

    first, second = (each.getMessage() for each in caplog.records if "is not used" in each.getMessage())
    assert "sets 'cache_implementation', 'max_length'," in first
    assert "generation_config sets 'use_cache'," in second


ASKED = PROMPT.replace("Where to?", "<user>Where to?</user>")
SAMPLED: list[dict[str, Any]] = [
    {},
    {"top_k": 0, "temperature": 3.0},
    {"repetition_penalty": 1.2, "top_p": 0.9},
    {"logprobs": 1},
    {"typical_p": 0.9},  # rows do not have it: transformers answers
    {"logits_processor": [lambda ids, scores: scores / 2]},
]


@settings(max_examples=law_examples(0.2))
@given(options=st.sampled_from(SAMPLED), seed=st.integers(0, 2**64 - 1))
@example(options={"typical_p": 0.9}, seed=7)
def test_a_seed_gives_one_answer_in_every_way(options: dict[str, Any], seed: int) -> None:
    """All ways draw the same numbers, other ones for other seeds, and neither read nor set the random state of torch."""
    asked = {"do_sample": True, "max_new_tokens": 8, "seed": seed, **options}
    before = torch.get_rng_state()
    with ENGINE.chat(ASKED).stream(**asked) as said:
        list(said)
    answers = {way: answered(ENGINE, ASKED, way, **asked) for way in WAYS}
    answers |= {
        "stream of a chat": said.completion,
        "beside another": ENGINE.generate_batch([LONGER, ASKED], **asked)[1],
    }

    assert len({each.token_ids for each in answers.values()}) == 1, answers
    assert torch.equal(before, torch.get_rng_state())
    others = {ENGINE.generate(ASKED, **{**asked, "seed": (seed + number) % 2**64}).token_ids for number in range(10)}
    assert len(others) > 1
