"""The tools that trained the demo model still run, and their question sets are judged right: benchmarks use them."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tools.demo.architecture import make_config
from tools.demo.documents import Fact
from tools.demo.questions import QuestionSet, draw_cases, is_right
from tools.demo.tokenizer import train_tokenizer
from tools.demo.train import Trainer, TrainSettings, train


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
