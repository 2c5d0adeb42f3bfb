"""The shipped model loads offline, is small, and reads simple documents; the tools that trained it still run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from promptcache.demo import MODEL_FOLDER
from tools.demo.architecture import make_config
from tools.demo.documents import Fact
from tools.demo.questions import QuestionSet, draw_cases, is_right
from tools.demo.tokenizer import train_tokenizer
from tools.demo.train import Trainer, TrainSettings, train

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


@pytest.mark.slow
def test_a_trained_model_is_exported(tmp_path: Path) -> None:
    """Training runs, also from a checkpoint, and transformers loads the exported weights."""
    tokenizer = train_tokenizer(0, num_documents=100)
    sizes = {"num_layers": 3, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "intermediate_size": 32}
    made = TrainSettings(seed=1, steps=4, warmup_steps=2, decay_steps=2, batch_tokens=300)
    whole, half, rest = (Trainer(made, tokenizer, make_config(tokenizer, hidden_size=32, **sizes)) for _ in range(3))
    for _ in range(2):
        half.step()
    half.save(tmp_path / "checkpoint.pt")
    rest.load(tmp_path / "checkpoint.pt")
    for trainer in (whole, rest):
        for _ in train(trainer, minutes=1.0):
            pass
    rest.export(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float16).state_dict()

    assert all(torch.equal(value.half(), loaded[name]) for name, value in whole.model.state_dict().items())


@pytest.mark.parametrize("asked", ["fact", "left out", "near"])
def test_cases_have_the_answer_of_their_document(asked: str) -> None:
    """A known fact is in the document, an unknown one is in no module, and only its answer is right."""
    cases = [*draw_cases(QuestionSet(num_entities=4, num_attributes=3, asked=asked, names="words"), 3, 60)]
    assert cases[:20] == [*draw_cases(QuestionSet(num_entities=4, num_attributes=3, asked=asked, names="words"), 3, 20)]
    for case in cases:
        fact = case.question.fact
        said = {(each.attribute, each.entity): each.value for module in case.present for each in module}
        assert said.get((fact.attribute, fact.entity), "unknown") == fact.value
        assert is_right(f"The {fact.attribute} of {fact.entity} is {fact.value}.", fact)
        assert not is_right(f"The {fact.attribute} of {fact.entity} is another.", fact)


def test_answers_that_are_not_right() -> None:
    """Parts of a value, other names and longer answers are wrong."""
    dish = Fact(attribute="best dish", entity="Miami", value="crab cakes")
    assert all(is_right(each, dish) for each in ("crab cakes", " crab cakes.\n"))
    wrong = ("", ".", "crab", "Crab cakes.", "crab cakes and soup", "The best dish of Paris is crab cakes.", "unknown")
    assert not any(is_right(each, dish) for each in wrong)
