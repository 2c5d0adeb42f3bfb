"""Options of generation: the same meaning from every source, or refused by name."""

from __future__ import annotations

import copy
import pickle
import queue
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel
from transformers.generation import utils as generation_utils

from promptcache.decode import Completion, FinishReason
from promptcache.diagnostics import InvalidGeneration, InvalidValue, PromptCacheError
from promptcache.engine import Engine
from promptcache.loops import PrefixCache
from promptcache.model import Model, used_tokens
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tests.conftest import law_examples
from tests.engine.asking import LONGER, PROMPT, WAYS, answered, engine_of
from tests.families import random_model

FULL = '<prompt schema="travel"><plan days="n days  "/>Where to?</prompt>'
GREEDY: dict[str, Any] = {"do_sample": False}
SHORT: dict[str, Any] = {"max_new_tokens": 12, **GREEDY}
ENGINE = engine_of()
PLAIN = ENGINE.generate(PROMPT, **SHORT).token_ids


def facts(answers: list[Completion] | tuple[Completion, ...]) -> list[tuple[tuple[int, ...], FinishReason]]:
    """Return the facts of answers that must not depend on the way of asking."""
    return [(answer.token_ids, answer.finish_reason) for answer in answers]


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
def test_a_models_own_settings_leave_linked_kv_alone(name: str, value: object) -> None:
    """A checkpoint's generation configuration cannot switch off the cache, count its tokens or draft some."""
    engine = engine_of()
    setattr(engine.model.hf.generation_config, name, value)

    answer = engine.generate(PROMPT, logprobs=0, **SHORT)

    assert answer.token_ids == tuple(each.token_id for each in answer.logprobs or ()) == PLAIN
    assert engine.generate_batch([PROMPT, LONGER], **SHORT)[0].token_ids == PLAIN


def test_a_least_number_of_new_tokens_is_no_reason_to_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    """`min_new_tokens` alone gives no warning about `min_length`."""
    told: list[str] = []
    monkeypatch.setattr(generation_utils.logger, "warning", told.append)

    ENGINE.generate(PROMPT, max_new_tokens=3, min_new_tokens=2, **GREEDY)

    assert told == []


@pytest.mark.parametrize(
    ("config", "keywords"),
    [
        ({"max_new_tokens": 5, "max_length": 3}, {"max_new_tokens": 5}),
        ({"max_new_tokens": 9, "eos_token_id": PLAIN[3]}, {"max_new_tokens": 9, "eos_token_id": PLAIN[3]}),
        ({"max_new_tokens": 9, "use_cache": False, "cache_implementation": "static"}, {"max_new_tokens": 9}),
    ],
)
def test_a_configuration_says_what_keywords_say(config: dict[str, Any], keywords: dict[str, Any]) -> None:
    """A `GenerationConfig` has the effect of its settings as keywords; its cache settings have none."""
    given = GenerationConfig(**config, **GREEDY)

    assert facts([ENGINE.generate(PROMPT, generation_config=given)]) == facts(
        [ENGINE.generate(PROMPT, **keywords, **GREEDY)]
    )


@pytest.mark.parametrize("way", ["generate", "batch", "stream"])
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0, "do_sample": True},
        {"generation_config": GenerationConfig(temperature=0.0, do_sample=True)},
        {"temperature": 0, "do_sample": True, "typical_p": 0.9},
    ],
    ids=["keyword", "configuration", "alone"],
)
def test_temperature_0_is_greedy(options: dict[str, Any], way: str) -> None:
    """`temperature=0` is greedy decoding, whatever answers the prompt."""
    assert answered(ENGINE, PROMPT, way, **{"max_new_tokens": 12, **options}).token_ids == PLAIN


@pytest.mark.parametrize("way", ["generate", "batch"])
def test_a_models_own_temperature_0_is_greedy(way: str) -> None:
    """So it is in a checkpoint's generation configuration; a temperature of the caller wins."""
    engine = engine_of()
    engine.model.hf.generation_config.update(temperature=0.0, do_sample=True)

    assert answered(engine, PROMPT, way, max_new_tokens=12).token_ids == PLAIN
    torch.manual_seed(0)
    assert answered(engine, PROMPT, way, max_new_tokens=12, temperature=5.0, top_k=0).token_ids != PLAIN


def test_keywords_stand_above_a_configuration() -> None:
    """Keywords win over a configuration, and that over the one of the model, as in transformers."""
    given = GenerationConfig(max_new_tokens=9, do_sample=True)
    engine = engine_of()
    engine.model.hf.generation_config.update(eos_token_id=PLAIN[0], max_new_tokens=2)

    assert (
        engine.generate(PROMPT, max_new_tokens=3, generation_config=given, eos_token_id=[], **GREEDY).token_ids
        == (PLAIN[:3])
    )
    given = GenerationConfig(max_new_tokens=5, eos_token_id=PLAIN[3], **GREEDY)
    assert engine.generate(PROMPT, generation_config=given).token_ids == PLAIN[:4]


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
        (
            {"num_return_sequences": 2, "do_sample": True, "logprobs": 1},
            "'logprobs' does not work with 'num_return_sequences'",
        ),
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
    given = {"max_new_tokens": 8, **options, **GREEDY}

    found = ENGINE.generate(FULL, **given)

    ids = torch.tensor([[token.token_id for token in used_tokens(found.plan.tokens)]])
    stock = copy.deepcopy(ENGINE.model.hf)
    stock.set_attn_implementation("eager")
    plain = {"eos_token_id": [*ENGINE.end_ids], **given}
    made = stock.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **plain)
    assert found.level == "exact"
    assert found.token_ids == tuple(made[0, ids.shape[1] :].tolist())
    assert [each.token_ids for each in ENGINE.generate_batch([FULL, FULL], **given)] == [found.token_ids] * 2


def test_a_stream_of_several_sequences_is_refused() -> None:
    """Their tokens would be mixed. A number in the model's own configuration counts. A second streamer is refused, too."""
    engine = engine_of()
    several = {"do_sample": True, "num_return_sequences": 2}
    chat = engine.chat()

    for stream in (lambda **options: engine.stream(PROMPT, **options), lambda **options: chat.stream("Hi", **options)):
        with pytest.raises(
            InvalidGeneration, match="one sequence can be streamed; for 'num_return_sequences' above 1 use generate"
        ):
            stream(**several)
    with pytest.raises(InvalidGeneration, match="streamer"):
        engine.stream(PROMPT, streamer=object())
    engine.model.hf.generation_config.update(**several)
    with pytest.raises(InvalidGeneration, match="one sequence"):
        engine.stream(PROMPT)


def test_several_sequences_have_the_seeds_from_the_given_one_on() -> None:
    """With a seed, the sequences are the answers of `generate` with this and the next seeds, in a batch as well."""
    options = {"do_sample": True, "max_new_tokens": 6}
    alone = [ENGINE.generate(PROMPT, seed=seed, **options) for seed in (5, 6, 7)]

    several = ENGINE.generate(PROMPT, seed=5, num_return_sequences=3, **options)
    together = ENGINE.generate_batch([PROMPT, LONGER], seed=5, num_return_sequences=3, **options)

    assert [several.text, *several.alternatives] == [each.text for each in alone]
    assert several.token_ids == alone[0].token_ids
    assert several.usage.num_generated_tokens == sum(len(each.token_ids) for each in alone)
    assert [each.alternatives for each in together] == [
        several.alternatives,
        ENGINE.generate(LONGER, seed=5, num_return_sequences=3, **options).alternatives,
    ]


def test_an_error_of_the_callers_code_ends_its_request_only() -> None:
    """It is raised as it is; the other requests of a service go on."""

    class Broken:
        def put(self, value: object) -> None:
            raise ValueError("mine")

        def end(self) -> None: ...

    def fails(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise ValueError("mine")

    wrong: list[dict[str, Any]] = [
        {"streamer": Broken()},
        {"logits_processor": [fails]},
        {"stopping_criteria": [lambda ids, scores, **_: fails(ids, scores)]},
    ]
    good, *bad = (queue.SimpleQueue[Any]() for _ in range(4))
    with ENGINE.service() as service:
        service.submit(PROMPT, good.put, **SHORT)
        for items, options in zip(bad, wrong, strict=True):
            service.submit(PROMPT, items.put, **options, **SHORT)
        heard = [good.get(timeout=60) for _ in range(13)]
    assert (tuple(heard[:12]), heard[12].token_ids) == (PLAIN, PLAIN)
    for items, options in zip(bad, wrong, strict=True):
        error = next(each for each in iter(items.get, None) if not isinstance(each, int))
        assert repr(error) == "ValueError('mine')"
        with pytest.raises(ValueError, match=r"^mine$"):
            ENGINE.generate(PROMPT, **options)


def test_the_time_of_an_answer_is_limited() -> None:
    """`max_time` ends an answer as in transformers."""
    assert ENGINE.generate(PROMPT, max_time=0.0, **SHORT).token_ids == PLAIN[:1]


def test_rows_with_less_room_are_as_alone() -> None:
    """Rows with different room before the end of the context stay within it."""
    config = GPT2Config(vocab_size=263, n_embd=16, n_layer=1, n_head=2, n_positions=128)
    modules = f'<module name="a">aaaa</module><module name="b">{"b" * 80}</module>'
    engine = engine_of(GPT2LMHeadModel(config), schema=f'<schema name="long">{modules}</schema>')
    prompts = ['<prompt schema="long"><a/>xy</prompt>', '<prompt schema="long"><a/><b/>xyz</prompt>']

    together = engine.generate_batch(prompts, eos_token_id=[], **GREEDY)

    assert facts(together) == facts([engine.generate(each, eos_token_id=[], **GREEDY) for each in prompts])
    assert [each.plan.stop + len(each.token_ids) for each in together] == [128, 128]


def test_inference_mode_leaves_no_trace() -> None:
    """KV encoded in `torch.inference_mode` works outside of it, and the reverse."""
    engine = engine_of()

    with torch.inference_mode():
        inside = engine.generate(LONGER, **SHORT)
    outside = engine.generate(PROMPT, **SHORT)
    with torch.inference_mode():
        again = engine.generate(PROMPT, **SHORT)

    assert outside.token_ids == again.token_ids == PLAIN
    assert inside.token_ids == ENGINE.generate(LONGER, **SHORT).token_ids


AUTOCAST = torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize("is_made_inside", [False, True])
def test_autocast_leaves_no_trace(is_made_inside: bool) -> None:
    """Inside of `torch.autocast`, an engine computes and stores KV in the dtype of the model, as outside."""
    with AUTOCAST if is_made_inside else nullcontext():
        engine = engine_of(Model(random_model("llama", torch.float32)))
    greedy = {"max_new_tokens": 6, **GREEDY}

    with AUTOCAST:
        inside = engine.generate(PROMPT, **greedy)
        together = engine.generate_batch([PROMPT, LONGER], **greedy)
        logits = engine.logits(PROMPT)

    assert engine.model.shape.dtype == logits.dtype == torch.float32
    assert torch.allclose(engine.reference(PROMPT), logits, atol=1e-5)
    fresh = engine_of(Model(random_model("llama", torch.float32)))
    assert inside.token_ids == together[0].token_ids == fresh.generate(PROMPT, **greedy).token_ids


def test_a_loop_of_the_caller_is_refused_inside_of_autocast() -> None:
    """The caller's own forward pass over stored KV names the fix, and nothing of it is stored."""
    engine = engine_of(Model(random_model("llama", torch.float32)))
    cache = PrefixCache(engine)
    linked, hit = engine.link(PROMPT), cache.get(torch.tensor([[5, 6, 7]]))
    message = r"torch.autocast\('cpu', enabled=False\)"

    with AUTOCAST, pytest.raises(InvalidValue, match=message):
        engine.model.hf.generate(**linked, max_new_tokens=2, **GREEDY)
    with AUTOCAST, pytest.raises(InvalidValue, match=message):
        engine.model.hf(**hit.inputs)

    assert cache.nbytes == 0


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: ENGINE.generate("<prompt"),
        lambda: ENGINE.generate(PROMPT.replace("paris", "rome")),
        lambda: ENGINE.generate('<prompt schema="other"/>'),
        lambda: ENGINE.generate(PROMPT, max_new_tokens=10**6),
        lambda: ENGINE.generate(PROMPT, max_length=5),
        lambda: ENGINE.add_schema("<schema><module/></schema>"),
    ],
)
def test_errors_come_out_of_another_process_as_they_were_raised(mistake: Callable[[], object]) -> None:
    """Pickled and copied errors keep their message and attributes."""
    with pytest.raises(PromptCacheError) as raised:
        mistake()
    raised.value.add_note("a note")

    for again in (pickle.loads(pickle.dumps(raised.value)), copy.copy(raised.value)):
        assert (type(again), str(again), vars(again)) == (type(raised.value), str(raised.value), vars(raised.value))


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("max_tokens", "max_new_tokens"),
        ("top_logprobs", "logprobs"),
        ("stop", "stop_strings"),
        ("n", "num_return_sequences"),
        ("random_seed", "seed"),
        ("user", "salt"),
        ("stream", "engine.stream"),
        ("stop_token_ids", "eos_token_id"),
        ("ignore_eos", "eos_token_id=None"),
        ("temprature", "temperature"),
        ("sed", "seed"),
        ("template_kwarg", "template_kwargs"),
    ],
)
def test_names_of_other_libraries_are_told_apart(named: str, meant: str) -> None:
    """An option of another library, or one that is mistyped, is refused with its name here, in every way of asking."""
    for way in ("generate", "stream", "batch"):
        with pytest.raises(InvalidGeneration, match=f"no option '{named}' .did you mean {meant}"):
            answered(ENGINE, PROMPT, way, **{named: 5})


def test_settings_that_are_not_used_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Caches and lengths of a generation configuration are named: the model's by the engine, a given one by the answer."""
    model = tiny_model()
    model.hf.generation_config = GenerationConfig(cache_implementation="static", max_length=77, temperature=0.5)
    given = GenerationConfig(use_cache=False, max_new_tokens=1)
    for _ in range(2):
        Engine(model, ByteTokenizer()).generate([{"role": "user", "content": "Hello"}], generation_config=given)

    told = [each.getMessage() for each in caplog.records if "is not used" in each.getMessage()]
    assert len(told) == 2
    assert "'cache_implementation', 'max_length'" in told[0]
    assert "generation_config sets 'use_cache'," in told[1]
    assert "temperature" not in told[0]


ASKED = PROMPT.replace("Where to?", "<user>Where to?</user>")
SAMPLED: list[dict[str, Any]] = [
    {},
    {"top_k": 0, "temperature": 3.0},
    {"repetition_penalty": 1.2, "top_p": 0.9},
    {"logprobs": 1},
    {"typical_p": 0.9},  # rows do not have it: transformers answers
    {"logits_processor": [lambda ids, scores: scores / 2]},
]


def in_every_way(options: dict[str, Any]) -> dict[str, Completion]:
    """Return the answer to one prompt in every way that takes options of `generate`."""
    with ENGINE.chat(ASKED).stream(**options) as said:
        list(said)
    assert said.completion is not None
    _, beside = ENGINE.generate_batch([LONGER, ASKED], **options)
    answers = {way: answered(ENGINE, ASKED, way, **options) for way in WAYS}
    return {**answers, "stream of a chat": said.completion, "beside another": beside}


@settings(max_examples=law_examples(0.2))
@given(options=st.sampled_from(SAMPLED), seed=st.integers(0, 2**64 - 1))
@example(options={"typical_p": 0.9}, seed=7)
def test_a_seed_gives_one_answer_in_every_way(options: dict[str, Any], seed: int) -> None:
    """All ways draw the same numbers, and neither read nor set the random state of torch."""
    asked = {"do_sample": True, "max_new_tokens": 8, "seed": seed, **options}
    before = torch.get_rng_state()
    answers = in_every_way(asked)

    assert len({each.token_ids for each in answers.values()}) == 1, answers
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("options", SAMPLED, ids=lambda each: " ".join(each) or "none")
def test_another_seed_gives_another_answer(options: dict[str, Any]) -> None:
    """The seed is used: ten seeds do not all give the same tokens."""
    asked = {"do_sample": True, "max_new_tokens": 8, **options}

    assert len({ENGINE.generate(ASKED, seed=seed, **asked).token_ids for seed in range(10)}) > 1
