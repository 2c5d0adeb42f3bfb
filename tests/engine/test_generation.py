"""Options of generation: the same meaning from every source, or refused by name."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel
from transformers.generation import utils as generation_utils

from promptcache.diagnostics import InvalidGeneration, PromptCacheError
from promptcache.engine import Engine
from promptcache.language import Prompt
from promptcache.runtime.completion import Completion, FinishReason
from promptcache.runtime.hf.model import Model
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tests.families import random_model

SCHEMA = """<schema name="travel">You plan trips.
<module name="plan">Stay <parameter name="days" length="8" placeholder="n days"/>.</module>
<union name="city"><module name="miami">Miami has beaches.</module><module name="paris">Paris has soup.</module></union>
</schema>"""
PROMPT = '<prompt schema="travel"><plan days="nine"/><paris/>Where to?</prompt>'
LONGER = '<prompt schema="travel"><miami/>Tell me more about all of it, please.</prompt>'
GREEDY: dict[str, Any] = {"do_sample": False}


def engine_of(model: Model) -> Engine:
    """An engine with the travel schema."""
    made = Engine(model, ByteTokenizer())
    made.add_schema(SCHEMA)
    return made


ENGINE = engine_of(tiny_model())
PLAIN = ENGINE.generate(PROMPT, max_new_tokens=12, **GREEDY).token_ids


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
    ],
)
def test_a_models_own_settings_leave_linked_kv_alone(name: str, value: object) -> None:
    """A checkpoint's generation configuration cannot switch off the cache or count its tokens."""
    engine = engine_of(tiny_model())
    setattr(engine.model.hf.generation_config, name, value)

    answers = engine.generate_batch([PROMPT, LONGER], max_new_tokens=12, **GREEDY)

    assert engine.generate(PROMPT, max_new_tokens=12, **GREEDY).token_ids == answers[0].token_ids == PLAIN


def test_a_least_number_of_new_tokens_is_no_reason_to_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    """`min_new_tokens` alone gives no warning about `min_length`."""
    told: list[str] = []
    monkeypatch.setattr(generation_utils.logger, "warning", told.append)

    ENGINE.generate(PROMPT, max_new_tokens=3, min_new_tokens=2, **GREEDY)

    assert told == []


@pytest.mark.parametrize(
    ("config", "keywords"),
    [
        ({"max_new_tokens": 5}, {"max_new_tokens": 5}),
        ({"max_new_tokens": 5, "max_length": 3}, {"max_new_tokens": 5}),
        ({"max_new_tokens": 9, "eos_token_id": PLAIN[3]}, {"max_new_tokens": 9, "eos_token_id": PLAIN[3]}),
        ({"max_new_tokens": 9, "repetition_penalty": 3.0}, {"max_new_tokens": 9, "repetition_penalty": 3.0}),
        ({"max_new_tokens": 9, "use_cache": False, "cache_implementation": "static"}, {"max_new_tokens": 9}),
        ({"max_new_tokens": 9, "num_beams": 2}, {"max_new_tokens": 9, "num_beams": 2}),
    ],
)
def test_a_configuration_says_what_keywords_say(config: dict[str, Any], keywords: dict[str, Any]) -> None:
    """A `GenerationConfig` has the effect of its settings as keywords; its cache settings have none."""
    given = GenerationConfig(**config, **GREEDY)

    assert facts([ENGINE.generate(PROMPT, generation_config=given)]) == facts(
        [ENGINE.generate(PROMPT, **keywords, **GREEDY)]
    )


def test_keywords_stand_above_a_configuration() -> None:
    """Keywords win over a configuration, as in transformers."""
    given = GenerationConfig(max_new_tokens=9, do_sample=True)

    assert ENGINE.generate(PROMPT, max_new_tokens=3, generation_config=given, **GREEDY).token_ids == PLAIN[:3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"generation_config": GenerationConfig(max_length=9)}, "max_new_tokens"),
        ({"generation_config": GenerationConfig(min_length=9)}, "min_new_tokens"),
        ({"generation_config": GenerationConfig(token_healing=True)}, "token_healing"),
        ({"generation_config": {"num_beams": 2}}, "a GenerationConfig is expected"),
        ({"cache_implementation": "static"}, "cache_implementation"),
        ({"token_healing": True}, "token_healing"),
        ({"stop_strings": ["x"]}, "pass tokenizer="),
        ({"stopping_criteria": lambda input_ids, scores: False}, "a list of functions is expected"),
    ],
)
def test_what_cannot_be_honoured_is_refused(options: dict[str, Any], message: str) -> None:
    """Unsupported options are refused by name, from every source."""
    with pytest.raises(InvalidGeneration, match=message):
        ENGINE.generate(PROMPT, **options)


@pytest.mark.parametrize("number", [0, -1, 2.5, "5"])
def test_the_number_of_new_tokens_is_a_whole_one(number: Any) -> None:
    """Only whole numbers from 1 on are accepted as `max_new_tokens`."""
    with pytest.raises(PromptCacheError, match=r"a whole number of tokens from 1 on is expected"):
        ENGINE.generate(PROMPT, max_new_tokens=number)


def test_generation_of_ones_own_asks_no_criterion() -> None:
    """A `custom_generate` function answers without calling the criteria."""

    def twice(model: object, input_ids: torch.Tensor, **kwargs: object) -> torch.Tensor:
        return torch.cat([input_ids, input_ids], 1)

    answer = ENGINE.generate(PROMPT, custom_generate=twice, max_new_tokens=100)

    assert answer.token_ids == ENGINE.plan(PROMPT).tokens.token_ids


def test_a_criterion_at_the_last_token_stops() -> None:
    """An answer that a criterion ends at its last allowed token has the finish reason "stop"."""

    def stop(input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
        return input_ids[:, -1] == PLAIN[2]

    answer = ENGINE.generate(PROMPT, max_new_tokens=3, stopping_criteria=[stop], **GREEDY)

    assert (answer.token_ids, answer.finish_reason) == (PLAIN[:3], FinishReason.STOP)


@pytest.mark.parametrize("ends", [{}, {"eos_token_id": []}], ids=["an end token", "no end token"])
def test_rows_that_a_criterion_stops_are_as_alone(ends: dict[str, Any]) -> None:
    """A batch row that stops early has no tokens after its stop, with or without an end token."""

    def stop(input_ids: torch.Tensor, scores: object, **kwargs: object) -> torch.Tensor:
        return input_ids[:, -1] == PLAIN[2]

    options = {"max_new_tokens": 12, "stopping_criteria": [stop], **GREEDY, **ends}
    together = ENGINE.generate_batch([PROMPT, LONGER, PROMPT], **options)

    assert facts(together) == facts([ENGINE.generate(each, **options) for each in (PROMPT, LONGER, PROMPT)])
    assert len({len(each.token_ids) for each in together}) > 1


def by_length(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """A logits processor that forces another token for every length."""
    return scores.index_fill(1, torch.tensor([input_ids.shape[1] % scores.shape[1]]), 1e4)


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 3.0},
        {"min_new_tokens": 9, "eos_token_id": PLAIN[3]},
        {"no_repeat_ngram_size": 2},
        {"logits_processor": [by_length]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_processors_see_the_tokens_of_one_row(options: dict[str, Any]) -> None:
    """Options that depend on a row's tokens give the same answers in a batch as alone."""
    options = {"max_new_tokens": 12, **options, **GREEDY}

    together = ENGINE.generate_batch([PROMPT, LONGER, PROMPT], **options)

    assert facts(together) == facts([ENGINE.generate(each, **options) for each in (PROMPT, LONGER, PROMPT)])


def test_rows_with_less_room_are_as_alone() -> None:
    """Rows with different room before the end of the context stay within it."""
    config = GPT2Config(vocab_size=263, n_embd=16, n_layer=1, n_head=2, n_positions=128)
    engine = Engine(GPT2LMHeadModel(config), ByteTokenizer())
    engine.add_schema(
        f'<schema name="long"><module name="a">aaaa</module><module name="b">{"b" * 80}</module></schema>'
    )
    prompts = ['<prompt schema="long"><a/>xy</prompt>', '<prompt schema="long"><a/><b/>xyz</prompt>']

    together = engine.generate_batch(prompts, eos_token_id=[], **GREEDY)

    assert facts(together) == facts([engine.generate(each, eos_token_id=[], **GREEDY) for each in prompts])
    assert [each.plan.stop + len(each.token_ids) for each in together] == [128, 128]


@pytest.mark.parametrize("single", [PROMPT, Prompt("travel").use("paris")])
def test_a_single_prompt_is_no_batch(single: Any) -> None:
    """A single prompt in place of a list is refused."""
    with pytest.raises(PromptCacheError, match="use generate"):
        ENGINE.generate_batch(single)


def test_a_models_own_beams_hold_in_a_batch() -> None:
    """Beams from the model's own configuration give the same answers in a batch as alone."""
    engine = engine_of(tiny_model())
    engine.model.hf.generation_config.num_beams = 2

    together = engine.generate_batch([PROMPT, LONGER], max_new_tokens=6, **GREEDY)

    assert facts(together) == facts([engine.generate(each, max_new_tokens=6, **GREEDY) for each in (PROMPT, LONGER)])


def test_inference_mode_leaves_no_trace() -> None:
    """KV encoded in `torch.inference_mode` works outside of it, and the reverse."""
    engine = engine_of(tiny_model())

    with torch.inference_mode():
        inside = engine.generate(LONGER, max_new_tokens=12, **GREEDY)
    outside = engine.generate(PROMPT, max_new_tokens=12, **GREEDY)
    with torch.inference_mode():
        again = engine.generate(PROMPT, max_new_tokens=12, **GREEDY)

    assert outside.token_ids == again.token_ids == PLAIN
    assert inside.token_ids == ENGINE.generate(LONGER, max_new_tokens=12, **GREEDY).token_ids


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


@pytest.mark.parametrize("asked", ["output_scores", "output_logits", "return_dict_in_generate"])
@pytest.mark.parametrize("model", ["segmented", "gptj (concatenated)"])
def test_what_was_asked_for_beside_the_tokens_is_returned(asked: str, model: str) -> None:
    """Scores, logits and the output object are returned as transformers makes them."""
    engine = ENGINE if model == "segmented" else engine_of(Model(random_model(model, torch.float64)))

    answer = engine.generate(PROMPT, max_new_tokens=4, **{asked: True}, **GREEDY)

    assert answer.output.sequences.tolist() == [list(answer.token_ids)]
    assert getattr(answer.output, "past_key_values", None) is None
    steps = answer.output.logits if asked == "output_logits" else answer.output.scores
    if asked != "return_dict_in_generate":
        assert [int(step.argmax()) for step in steps] == list(answer.token_ids)
    if asked == "output_logits":
        assert torch.allclose(steps[0][0], engine.reference(PROMPT)[-1].float())


def test_scores_of_beams_belong_to_their_sequences() -> None:
    """transformers' `compute_transition_scores` accepts the output of a request with beams."""
    answer = ENGINE.generate(
        PROMPT, max_new_tokens=4, num_beams=3, num_return_sequences=2, output_scores=True, **GREEDY
    )

    found = ENGINE.model.hf.compute_transition_scores(
        answer.output.sequences, answer.output.scores, answer.output.beam_indices, normalize_logits=False
    )

    assert torch.allclose(found.sum(1) / 4, answer.output.sequences_scores)


def test_a_batch_and_a_stream_return_what_was_asked_for() -> None:
    """Answers of a batch and of a stream have their own output objects, as alone."""
    asked = {"max_new_tokens": 6, "output_logits": True, "output_hidden_states": True, **GREEDY}
    alone = [ENGINE.generate(prompt, eos_token_id=PLAIN[3], **asked).output for prompt in (PROMPT, LONGER)]

    together = ENGINE.generate_batch([PROMPT, LONGER], eos_token_id=PLAIN[3], **asked)
    stream = ENGINE.stream(PROMPT, eos_token_id=PLAIN[3], **asked)
    assert "".join(stream) == together[0].text

    assert [len(each.logits) for each in alone] == [4, 3]
    for one, another in zip(
        [*alone, alone[0]], [*(each.output for each in together), stream.completion.output], strict=True
    ):
        assert torch.equal(one.sequences, another.sequences)
        assert all(torch.allclose(a, b) for a, b in zip(one.logits, another.logits, strict=True))
        assert [step[-1].shape for step in one.hidden_states] == [step[-1].shape for step in another.hidden_states]


def test_weights_of_attention_are_refused() -> None:
    """`output_attentions` is refused: weights over stored KV are not kept."""
    with pytest.raises(InvalidGeneration, match="output_attentions"):
        ENGINE.generate(PROMPT, output_attentions=True)


@pytest.mark.parametrize(
    ("named", "meant"),
    [
        ("max_tokens", "max_new_tokens"),
        ("stop", "stop_strings"),
        ("n", "num_return_sequences"),
        ("temprature", "temperature"),
    ],
)
def test_names_of_other_libraries_are_told_apart(named: str, meant: str) -> None:
    """An option of another library is refused with the name that transformers has for it."""
    with pytest.raises(InvalidGeneration, match=f"no option '{named}' .did you mean {meant}"):
        ENGINE.generate(PROMPT, **{named: 5})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 0}, "num_beams=0 is not allowed: a whole number from 1"),
        ({"num_return_sequences": 0}, "num_return_sequences=0 is not allowed"),
        ({"max_new_tokens": True}, "max_new_tokens=True is not allowed"),
        ({"temperature": -1.0, "do_sample": True}, "temperature"),
        ({"bad_words_ids": 5}, "bad_words_ids"),
        ({"num_return_sequences": 3, "do_sample": False}, "Greedy methods"),
    ],
)
def test_values_that_transformers_refuses_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    """An option that transformers refuses before the model runs raises `InvalidGeneration`."""
    with pytest.raises(InvalidGeneration, match=message):
        ENGINE.generate(PROMPT, **options)


def test_errors_of_the_callers_own_code_are_left_alone() -> None:
    """Errors of the caller's streamers and processors are not changed."""

    class Broken:
        def put(self, value: object) -> None:
            raise ValueError("mine")

        def end(self) -> None: ...

    def fail(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise ValueError("mine")

    for options in ({"streamer": Broken()}, {"logits_processor": [fail]}):
        with pytest.raises(ValueError, match=r"^mine$") as found:
            ENGINE.generate(PROMPT, **options)
        assert not isinstance(found.value, PromptCacheError)
