"""`seed=`: the same seed gives the same answer in every way of asking."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from promptcache.decode import Completion
from tests.conftest import law_examples
from tests.engine.asking import LONGER, WAYS, answered, engine_of

PROMPT = '<prompt schema="travel"><paris/><user>Where to?</user></prompt>'
ENGINE = engine_of()

OPTIONS: list[dict[str, Any]] = [
    {},
    {"top_k": 0, "temperature": 3.0},
    {"repetition_penalty": 1.2, "top_p": 0.9},
    {"logprobs": 1},
    {"typical_p": 0.9},  # rows do not have it: transformers answers
    {"logits_processor": [lambda ids, scores: scores / 2]},
]


def in_every_way(options: dict[str, Any]) -> dict[str, Completion]:
    """Return the answer to one prompt in every way that takes options of `generate`."""
    with ENGINE.chat(PROMPT).stream(**options) as said:
        list(said)
    assert said.completion is not None
    _, beside = ENGINE.generate_batch([LONGER, PROMPT], **options)
    answers = {way: answered(ENGINE, PROMPT, way, **options) for way in WAYS}
    return {**answers, "stream of a chat": said.completion, "beside another": beside}


@settings(max_examples=law_examples(0.2))
@given(options=st.sampled_from(OPTIONS), seed=st.integers(0, 2**64 - 1))
@example(options={"typical_p": 0.9}, seed=7)
def test_a_seed_gives_one_answer_in_every_way(options: dict[str, Any], seed: int) -> None:
    """All ways draw the same numbers, and neither read nor set the random state of torch."""
    asked = {"do_sample": True, "max_new_tokens": 8, "seed": seed, **options}
    before = torch.get_rng_state()
    answers = in_every_way(asked)

    assert len({each.token_ids for each in answers.values()}) == 1, answers
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("options", OPTIONS, ids=lambda each: " ".join(each) or "none")
def test_another_seed_gives_another_answer(options: dict[str, Any]) -> None:
    """The seed is used: ten seeds do not all give the same tokens."""
    asked = {"do_sample": True, "max_new_tokens": 8, **options}

    assert len({ENGINE.generate(PROMPT, seed=seed, **asked).token_ids for seed in range(10)}) > 1
