"""Answers with a format: valid, equal to those of transformers under the same masks, and independent of other rows."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import jsonschema  # type: ignore[import-untyped]
import llguidance.hf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessorList

from promptcache import Choice, Completion, Engine, Prompt, Regex
from promptcache.decode import FinishReason
from promptcache.demo import MODEL_FOLDER
from promptcache.diagnostics import InvalidGeneration, InvalidOutput
from promptcache.language import CHAT_SCHEMA
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tests.conftest import law_examples
from tests.decode.test_service import ask
from tests.engine import asking
from tests.engine.asking import GREEDY, SCHEMA, WAYS, answered
from tests.engine.calling import AnswerProcessor
from tests.strategies.json_schemas import json_schemas

STATED = SCHEMA.replace("travel", "stated").replace("</schema>", '<answer type="int" pattern="[1-9][0-9]"/></schema>')
PROMPT = '<prompt schema="travel"><plan days="nine"/><paris/><user>Where to?</user></prompt>'
OTHER = '<prompt schema="travel"><miami/><user>Tell me more about all of it, please.</user></prompt>'

MODEL = AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, dtype=torch.float64)
HF_TOKENIZER: Any = AutoTokenizer.from_pretrained(MODEL_FOLDER)
GUIDANCE = llguidance.hf.from_tokenizer(HF_TOKENIZER)


def engine_of(model: Any, tokenizer: Any) -> Engine:
    engine = asking.engine_of(model, tokenizer)
    engine.add_schema(STATED)
    return engine


ENGINE = engine_of(MODEL, HF_TOKENIZER)
BYTES = engine_of(tiny_model(dtype=torch.float64), ByteTokenizer())


def masks(schema: dict[str, Any]) -> AnswerProcessor:
    """The masks of llguidance, from a new matcher and llguidance's own reading of the tokenizer in each step."""
    spaces = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
    grammar = llguidance.LLMatcher.grammar_from_json_schema({**schema, "x-guidance": spaces})

    def masked(answer: list[int], scores: torch.Tensor) -> torch.Tensor:
        matcher = llguidance.LLMatcher(GUIDANCE, grammar)
        assert matcher.consume_tokens(answer)
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = torch.from_numpy(bits[: scores.shape[1]].astype(bool))
        return scores.masked_fill(~allowed, -torch.inf)

    return AnswerProcessor(masked)


def answers_of(*requests: tuple[str, dict[str, Any]]) -> list[Any]:
    with BYTES.service() as service:
        asked = [ask(service, prompt, **options)[0] for prompt, options in requests]
        return [each.exception() or each.result() for each in asked]


def is_valid(answer: Completion, schema: dict[str, Any]) -> bool:
    if answer.finish_reason is FinishReason.LENGTH:
        return True
    jsonschema.validate(answer.parsed, schema, format_checker=jsonschema.FormatChecker())
    return bool(answer.parsed == json.loads(answer.text))


@pytest.mark.law
@settings(max_examples=law_examples(0.06, thorough=1))
@given(schema=json_schemas())
def test_greedy_tokens_are_those_of_masked_logits(schema: dict[str, Any]) -> None:
    """Rows, and transformers' `generate` over linked KV, choose what transformers chooses under the same masks."""
    answer = ENGINE.generate(PROMPT, output=schema, do_sample=False, max_new_tokens=48)
    assert is_valid(answer, schema)
    expected = ENGINE.generate(
        PROMPT, do_sample=False, max_new_tokens=48, logits_processor=LogitsProcessorList([masks(schema)])
    )
    assert answer.token_ids == expected.token_ids


@pytest.mark.law
@settings(max_examples=law_examples(0.06, thorough=1))
@given(schemas=st.lists(json_schemas() | st.none(), min_size=2, max_size=5), seed=st.integers(0, 2**32))
def test_answers_do_not_depend_on_other_rows(schemas: list[dict[str, Any] | None], seed: int) -> None:
    """Rows with different formats, and without one, get the answers that they get alone. Finished ones are valid."""
    asked = [
        (
            PROMPT if index % 2 else OTHER,
            {"do_sample": True, "top_k": 0, "max_new_tokens": 40, "seed": seed + index, "output": schema},
        )
        for index, schema in enumerate(schemas)
    ]
    for request, schema, answer in zip(asked, schemas, answers_of(*asked), strict=True):
        assert answer.token_ids == answers_of(request)[0].token_ids
        assert schema is None or is_valid(answer, schema)


class Person(BaseModel):
    """A model of pydantic, which refuses some of what its JSON schema allows."""

    name: Literal["Ann", "Bob"]
    age: Literal[3, 4]

    @field_validator("age")
    @classmethod
    def is_grown(cls, value: int) -> int:
        if value < 4:
            raise ValueError("too young")
        return value


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_asking_gives_the_value(way: str) -> None:
    """All ways take `output`, and have the format that a schema states."""
    given = answered(ENGINE, PROMPT, way, output=Choice(["a", "b"]))
    found = answered(ENGINE, stated(), way)

    assert given.parsed in ("a", "b")
    assert isinstance(found.parsed, int)
    assert answered(ENGINE, PROMPT, way, max_new_tokens=2).parsed is None


def stated(own: str = "", prompt: str = PROMPT) -> str:
    return prompt.replace('"travel">', f'"stated">{own}')


def test_schemas_and_prompts_state_formats() -> None:
    """The format of a prompt wins over that of its schema, and `output` over both; each gives the answer of `output`."""
    days, vote = Regex("[+-]?[0-9]+", also="[1-9][0-9]", load=int), Choice(["yes", "no"])
    own = '<answer type="choice" choices="yes|no"/>'
    asked: list[tuple[str, dict[str, Any], Any]] = [
        (stated(), {}, days),
        (stated(own), {}, vote),
        (PROMPT.replace('"travel">', f'"travel">{own}'), {}, vote),
        (stated(own), {"output": days}, days),
        (stated(), {"output": vote}, vote),
        (stated("<answer/>"), {"max_new_tokens": 2}, None),
    ]
    for prompt, options, expected in asked:
        answer = ENGINE.generate(prompt, do_sample=False, **options)
        assert answer.output_format == expected
        plain = ENGINE.generate(PROMPT, do_sample=False, **{**options, "output": expected})
        assert (answer.token_ids, answer.parsed) == (plain.token_ids, plain.parsed)
    batch = ENGINE.generate_batch([stated(), stated("<answer pattern='[a-c]'/>"), PROMPT], do_sample=False)
    assert [type(each.parsed) for each in batch] == [int, str, type(None)]


def test_a_format_changes_no_token_and_no_key() -> None:
    first, *others = (ENGINE.plan(each) for each in (PROMPT, stated(), stated("<answer type='line'/>")))
    assert first.reused
    assert [(each.reused, each.new) for each in others] == [(first.reused, first.new)] * 2


def test_a_saved_chat_keeps_the_format_of_its_prompt(tmp_path: Path) -> None:
    """Also one in a file, which the chat does not need any more, and one of a chat without a schema. A call may have its own."""
    (tmp_path / "vote.json").write_text('{"enum": ["yes", "no"]}')
    (tmp_path / "prompt.xml").write_text(stated('<answer src="vote.json"/>'))
    chat = ENGINE.chat(tmp_path / "prompt.xml")
    assert chat.say(output=Choice(["a", "b"])).parsed in ("a", "b")
    chat.save(tmp_path / "chat.json")
    (tmp_path / "vote.json").unlink()
    ENGINE.load_chat(tmp_path / "chat.json").save(tmp_path / "again.json")
    messages = Prompt.from_messages(CHAT_SCHEMA, [{"role": "user", "content": "Yes?"}])
    vote = Prompt("any").answer("choice", choices=("yes", "no")).answer_format
    ENGINE.chat(replace(messages, answer_format=vote)).save(tmp_path / "plain.json")
    for path, asked in (("again.json", "Really?"), ("plain.json", None)):
        assert ENGINE.load_chat(tmp_path / path).say(asked).parsed in ("yes", "no")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_new_tokens": 2}, r"cut at 2 tokens.*max_new_tokens"),
        ({"logit_bias": {ord("3"): 100.0}}, r"does not have the format.*Person"),
    ],
)
def test_an_answer_without_a_value_says_why(options: dict[str, Any], words: str) -> None:
    answer = BYTES.generate(PROMPT, output=Person, do_sample=False, **options)
    with pytest.raises(InvalidOutput, match=words):
        answer.parsed  # noqa: B018 - raises


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        (PROMPT, {"output": 3}, "output=3 is not allowed"),
        (PROMPT, {"output": Person, "min_new_tokens": 3}, "'output' does not work with 'min_new_tokens'"),
        (PROMPT, {"output": Person, "eos_token_id": []}, "needs an end token"),
        (stated(), {"min_new_tokens": 3}, r"<answer> of the prompt or its schema does not work with 'min_new_tokens'"),
    ],
)
def test_what_is_not_possible_is_refused(prompt: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidGeneration, match=message):
        ENGINE.generate(prompt, **options)


def test_an_answer_without_a_next_token_fails_alone() -> None:
    dead, alive = answers_of(
        (PROMPT, {"output": Regex("ab?b"), "eos_token_id": ord("b"), "max_new_tokens": 4}),
        (PROMPT, {"output": Choice(["abc"]), "max_new_tokens": 8}),
    )
    assert isinstance(dead, InvalidGeneration)
    assert "allows no further token" in str(dead)
    assert alive.parsed == "abc"


NUM_TOKENS = BYTES.model.num_known_tokens


def changes(presence: float, frequency: float, bias: dict[int, float]) -> AnswerProcessor:
    """OpenAI's formula, token by token."""

    def changed(answer: list[int], scores: torch.Tensor) -> torch.Tensor:
        made = scores.clone()
        for token in range(scores.shape[1]):
            count = answer.count(token)
            made[0, token] += bias.get(token, 0.0) - count * frequency - (count > 0) * presence
        return made

    return AnswerProcessor(changed)


_NUMBERS = st.sampled_from([0.0, 0.5, -0.5, 2.0])


@pytest.mark.law
@settings(max_examples=law_examples(0.5), deadline=None)
@given(
    presence=_NUMBERS,
    frequency=_NUMBERS,
    bias=st.dictionaries(st.integers(0, NUM_TOKENS - 1), st.sampled_from([-100.0, -1.0, 1.0, 3.0]), max_size=4),
)
def test_tokens_are_those_of_the_formula(presence: float, frequency: float, bias: dict[int, float]) -> None:
    options = {"presence_penalty": presence, "frequency_penalty": frequency, "logit_bias": bias}
    formula, nothing = (LogitsProcessorList([changes(*each)]) for each in ((presence, frequency, bias), (0.0, 0.0, {})))

    expected = BYTES.generate(PROMPT, logits_processor=formula, **GREEDY).token_ids

    assert BYTES.generate(PROMPT, **options, **GREEDY).token_ids == expected
    assert BYTES.generate(PROMPT, logits_processor=nothing, **options, **GREEDY).token_ids == expected
