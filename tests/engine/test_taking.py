"""What an engine can be made of; everything else is refused by name, with what to do instead."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from promptcache.diagnostics import UnsupportedModel
from promptcache.engine import Engine
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import CONTEXT_LENGTH, tiny_model

LLAMA = transformers.LlamaConfig(
    vocab_size=263, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
)
GPT2 = {"n_embd": 16, "n_layer": 1, "n_head": 2}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: "demo", r"a loaded model of transformers, not str; Engine.from_pretrained\(\) loads one"),
        (lambda: torch.nn.Linear(2, 2), "not Linear"),
        (
            lambda: transformers.LlamaModel(LLAMA),
            "LlamaModel does not generate text; load it with AutoModelForCausalLM",
        ),
        (
            lambda: transformers.BloomForCausalLM(
                transformers.BloomConfig(vocab_size=263, hidden_size=16, n_layer=1, n_head=2)
            ),
            "bloom .*counts positions by place in the cache",
        ),
        (
            lambda: transformers.FalconForCausalLM(
                transformers.FalconConfig(
                    vocab_size=263, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, alibi=True
                )
            ),
            "falcon .*counts positions by place in the cache",
        ),
        (
            lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=263, n_positions=8, **GPT2)),
            "has 8 positions; 26 are needed at least",
        ),
    ],
    ids=["a name", "a module", "no output layer", "alibi", "alibi by choice", "few positions"],
)
def test_what_is_no_model_is_refused(make: Any, message: str) -> None:
    """Whatever else is given for a model, and whatever model has no positions of its own, is refused with the reason."""
    with pytest.raises(UnsupportedModel, match=message):
        Engine(make(), ByteTokenizer())


@pytest.mark.parametrize("tokenizer", [None, "demo"])
def test_what_is_no_tokenizer_is_refused(tokenizer: Any) -> None:
    """A tokenizer is one of transformers, or has what `Tokenizer` names."""
    with pytest.raises(UnsupportedModel, match=f"a loaded tokenizer, not {type(tokenizer).__name__}"):
        Engine(tiny_model(), tokenizer)


@pytest.mark.parametrize("length", [0, -3, 2.5, "long"])
def test_a_context_length_is_a_number_of_positions(length: Any) -> None:
    """Nothing else is taken for one."""
    with pytest.raises(UnsupportedModel, match="a whole number of positions from 1 on"):
        Engine(tiny_model().hf, ByteTokenizer(), context_length=length)


def test_a_model_of_ours_keeps_its_context_length() -> None:
    """Where it was said when the `Model` was made, another one is refused, and the same one is not."""
    model = tiny_model()

    assert Engine(model, ByteTokenizer(), context_length=CONTEXT_LENGTH).model is model
    with pytest.raises(UnsupportedModel, match=f"made for {CONTEXT_LENGTH} positions, not 64"):
        Engine(model, ByteTokenizer(), context_length=64)


def test_a_tokenizer_of_another_model_is_noticed() -> None:
    """Tokens that the model does not know are refused by number before anything is computed, in schemas and in prompts."""
    engine = Engine(
        transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=120, **GPT2)),
        ByteTokenizer(),
    )
    engine.add_schema('<schema name="s">é<module name="a">abc</module></schema>')
    engine.add_schema('<schema name="t"><module name="a">abc</module></schema>')

    for answer in (engine.generate, lambda prompt: engine.generate_batch([prompt])):
        with pytest.raises(UnsupportedModel, match=r"knows 120 tokens, and its tokenizer makes token \d+"):
            answer('<prompt schema="s"/>')
        with pytest.raises(UnsupportedModel, match=r"knows 120 tokens, and its tokenizer makes token \d+"):
            answer('<prompt schema="t"><a/>é</prompt>')
