"""Log-probabilities are those of the model's raw logits, for every way of asking."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LogitsProcessorList, TemperatureLogitsWarper

from promptcache.answers import TokenLogprobs
from promptcache.decode import Completion
from promptcache.diagnostics import InvalidGeneration
from promptcache.model import reference_logits
from tests.conftest import law_examples
from tests.engine.asking import LONGER, PROMPT, answered, engine_of
from tests.families import random_model

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 6}
WAYS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 5.0},
    {"do_sample": True, "temperature": 0.7, "top_k": 3},
    {"logits_processor": LogitsProcessorList([TemperatureLogitsWarper(0.1)])},
]
"""Options that change scores, but not what the model says."""


ENGINE = engine_of()


def close(found: tuple[TokenLogprobs, ...] | None, expected: tuple[TokenLogprobs, ...] | None) -> bool:
    """Whether log-probabilities are the same up to rounding."""
    assert found is not None
    assert expected is not None
    return len(found) == len(expected) and all(
        (a.token_id, [token for token, _ in a.top]) == (b.token_id, [token for token, _ in b.top])
        and math.isclose(a.logprob, b.logprob, abs_tol=1e-5)
        for a, b in zip(found, expected, strict=True)
    )


def is_of_logits(answer: Completion, num_top: int) -> bool:
    """Whether the log-probabilities of an answer are those of the logits of the reference."""
    assert answer.logprobs is not None
    tokens = answer.plan.continued(answer.token_ids[:-1]).tokens
    logits = reference_logits(tokens, ENGINE.model)[-len(answer.token_ids) :]
    steps = [*torch.log_softmax(logits.double(), -1)]
    return len(steps) == len(answer.logprobs) == len(answer.token_ids) and all(
        each.token_id == token_id
        and math.isclose(each.logprob, float(step[token_id]), abs_tol=1e-5)
        and [token for token, _ in each.top] == step.topk(num_top).indices.tolist()
        and all(math.isclose(logprob, float(step[token]), abs_tol=1e-5) for token, logprob in each.top)
        for each, step, token_id in zip(answer.logprobs, steps, answer.token_ids, strict=True)
    )


@pytest.mark.parametrize("way", WAYS, ids=lambda way: ",".join(way) or "greedy")
@given(num_top=st.integers(0, 20), num_tokens=st.integers(1, 6))
@settings(max_examples=law_examples(0.05))
def test_they_are_those_of_raw_logits(way: dict[str, Any], num_top: int, num_tokens: int) -> None:
    """They are the log-softmax of the logits before processors, for any number of tokens, in `generate` and in batches."""
    given = {**GREEDY, **way, "max_new_tokens": num_tokens, "logprobs": num_top}

    assert is_of_logits(ENGINE.generate(PROMPT, **given), num_top)
    for answer in ENGINE.generate_batch([PROMPT, LONGER], **given):
        assert is_of_logits(answer, num_top)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_every_way_of_asking_gives_the_same(family: str) -> None:
    """A batch, a stream and a chat have the log-probabilities of a single answer; the first are those of `logits`."""
    engine = engine_of(random_model(family, torch.float64))
    alone = [engine.generate(prompt, **GREEDY, logprobs=3) for prompt in (PROMPT, LONGER)]

    assert close(answered(engine, PROMPT, "stream", **GREEDY, logprobs=3).logprobs, alone[0].logprobs)
    for each, single in zip(engine.generate_batch([PROMPT, LONGER], **GREEDY, logprobs=3), alone, strict=True):
        assert close(each.logprobs, single.logprobs)
    assert alone[0].logprobs is not None
    first = torch.log_softmax(engine.logits(PROMPT)[-1].double(), -1)
    assert math.isclose(alone[0].logprobs[0].logprob, float(first[alone[0].token_ids[0]]), abs_tol=1e-5)


def test_rows_that_end_early_have_no_padding() -> None:
    """Each row of a batch has as many log-probabilities as tokens, the end token included."""
    plain = ENGINE.generate(PROMPT, do_sample=False, max_new_tokens=8)
    end = plain.token_ids[2]

    answers = ENGINE.generate_batch([PROMPT, LONGER], do_sample=False, max_new_tokens=8, eos_token_id=end, logprobs=1)

    assert len(answers[0].token_ids) < 8
    for each in answers:
        assert each.logprobs is not None
        assert [step.token_id for step in each.logprobs] == list(each.token_ids)


def test_nothing_else_changes() -> None:
    """Without the option there are none; with it tokens and the model are as before, also in later requests."""
    before = ENGINE.generate(PROMPT, **GREEDY)
    forward = ENGINE.model.hf.forward

    asked = ENGINE.generate(PROMPT, **GREEDY, logprobs=0)

    assert before.logprobs is None
    assert asked.token_ids == before.token_ids
    assert [each.top for each in asked.logprobs or ()] == [()] * len(asked.token_ids)
    assert ENGINE.model.hf.forward == forward
    assert ENGINE.generate(PROMPT, **GREEDY).logprobs is None


def test_several_sequences_are_refused() -> None:
    """Only the first one would have log-probabilities."""
    for ask in (ENGINE.generate, ENGINE.stream):
        with pytest.raises(InvalidGeneration, match="'logprobs' does not work with 'num_return_sequences'"):
            ask(PROMPT, logprobs=1, num_return_sequences=2, do_sample=True)
