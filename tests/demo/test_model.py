"""The shipped model folder loads offline, is small, and reads simple documents."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from promptcache.demo import MODEL_FOLDER

TRAVEL = """The duration of the trip is three days.
The airport of Miami is Miami International. The best dish of Miami is crab cakes.
The airport of Paris is Orly. The best dish of Paris is onion soup."""
SUPPORT = """The refund window of Germany is thirty days. The shipping fee of Germany is 5 euros.
The refund window of France is 14 days. The shipping fee of France is 9 euros."""


@pytest.fixture(scope="module")
def model() -> Any:  # transformers' Auto classes have no narrower type
    return AutoModelForCausalLM.from_pretrained(MODEL_FOLDER, dtype=torch.float32)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL_FOLDER)


def test_folder_is_small() -> None:
    """All files together are at most 12 MB."""
    assert sum(path.stat().st_size for path in MODEL_FOLDER.iterdir()) <= 12_000_000


def test_model_and_tokenizer_agree(model: Any, tokenizer: Any) -> None:
    """The configuration names the tokenizer's special tokens, and the weights are half precision, GQA and finite."""
    config = model.config
    assert (config.bos_token_id, config.eos_token_id) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert config.vocab_size == len(tokenizer)
    assert config.num_key_value_heads < config.num_attention_heads
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("document", "question", "answer"),
    [
        (TRAVEL, "What is the airport of Miami?", "The airport of Miami is Miami International."),
        (TRAVEL, "What is the best dish of Paris?", "The best dish of Paris is onion soup."),
        (TRAVEL, "What is the duration of the trip?", "The duration of the trip is three days."),
        (TRAVEL, "What is the airport of Tokyo?", "The airport of Tokyo is unknown."),
        (SUPPORT, "What is the refund window of Germany?", "The refund window of Germany is thirty days."),
        (SUPPORT, "What is the refund window of Spain?", "The refund window of Spain is unknown."),
    ],
)
def test_simple_questions_are_answered(model: Any, tokenizer: Any, document: str, question: str, answer: str) -> None:
    """Greedy decoding gives the whole answer and stops."""
    messages = [{"role": "system", "content": document}, {"role": "user", "content": question}]
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**inputs, max_new_tokens=40, do_sample=False)

    assert tokenizer.decode(output[0, inputs["input_ids"].shape[1] :]) == f"{answer}<|end|>"
