"""`seed=`: the same seed gives the same answer in every way of asking."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from promptcache.decode import Completion
from promptcache.engine import Engine
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model
from tests.conftest import law_examples
from tests.decode.test_service import ask

SCHEMA = """<schema name="travel"><system>You plan trips.</system>
<union name="city"><module name="miami">Miami has beaches.</module><module name="paris">Paris has soup.</module></union>
</schema>"""
PROMPT = '<prompt schema="travel"><paris/><user>Where to?</user></prompt>'
OTHER = '<prompt schema="travel"><miami/><user>Tell me more.</user></prompt>'
ENGINE = Engine(tiny_model(), ByteTokenizer())
ENGINE.add_schema(SCHEMA)

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
    _, batched = ENGINE.generate_batch([OTHER, PROMPT], **options)
    with ENGINE.stream(PROMPT, **options) as stream:
        list(stream)
    assert stream.completion is not None
    chat = ENGINE.chat(PROMPT)
    with chat.fork().stream(**options) as said:
        list(said)
    assert said.completion is not None
    with ENGINE.service() as service:
        served = ask(service, PROMPT, **options)[0].result(60)
    return {
        "generate": ENGINE.generate(PROMPT, **options),
        "batch": batched,
        "stream": stream.completion,
        "chat": chat.say(**options),
        "stream of a chat": said.completion,
        "service": served,
    }


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


def test_several_sequences_of_one_seed() -> None:
    """They differ from each other, and are the same again."""
    options = {"do_sample": True, "num_return_sequences": 3, "max_new_tokens": 8, "seed": 5}
    first, again = (ENGINE.generate(PROMPT, **options) for _ in range(2))

    assert (first.token_ids, first.alternatives) == (again.token_ids, again.alternatives)
    assert len({first.text, *first.alternatives}) > 1
