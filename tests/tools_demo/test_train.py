"""Laws of training, on a model small enough for seconds."""

from functools import cache
from pathlib import Path
from random import Random

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig

from tools.demo.architecture import make_config, make_model
from tools.demo.documents import DocumentSettings, NameSource
from tools.demo.samples import collate, draw_samples, score
from tools.demo.tokenizer import train_tokenizer, twins
from tools.demo.train import STAGES, Curriculum, Trainer, TrainSettings, train

pytestmark = pytest.mark.slow  # the tool is run when the demo model is trained again
SETTINGS = TrainSettings(seed=1, steps=4, warmup_steps=2, decay_steps=2, batch_tokens=300)


@cache
def tokenizer() -> Tokenizer:
    """A tokenizer trained on few documents."""
    return train_tokenizer(0, num_documents=100)


def tiny_config() -> LlamaConfig:
    return make_config(
        tokenizer(), hidden_size=32, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=16, intermediate_size=32
    )


def trained(*, stop_after: int | None, path: Path) -> dict[str, torch.Tensor]:
    trainer = Trainer(SETTINGS, tokenizer(), tiny_config())
    if stop_after is not None:
        for _ in range(stop_after):
            trainer.step()
        trainer.save(path)
        trainer = Trainer(SETTINGS, tokenizer(), tiny_config())
        trainer.load(path)
    for _ in train(trainer, minutes=1.0):
        pass
    return trainer.model.state_dict()


def test_resuming_changes_nothing(tmp_path: Path) -> None:
    """Stopping at a checkpoint and continuing gives the same weights."""
    straight = trained(stop_after=None, path=tmp_path / "unused.pt")
    resumed = trained(stop_after=2, path=tmp_path / "checkpoint.pt")

    assert all(torch.equal(straight[name], resumed[name]) for name in straight)


def test_export_loads_with_transformers(tmp_path: Path) -> None:
    """An exported folder loads, with the trained weights in half precision."""
    trainer = Trainer(SETTINGS, tokenizer(), tiny_config())
    trainer.export(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float16).state_dict()

    assert all(torch.equal(value.half(), loaded[name]) for name, value in trainer.model.state_dict().items())


def test_score_agrees_with_greedy_decoding() -> None:
    """An answer counts as right exactly if greedy decoding gives it, token by token."""
    model = make_model(tiny_config(), twins(tokenizer()), seed=0)  # has no dropout
    settings = DocumentSettings(num_facts=2, max_questions=3, unknown_share=0.0)
    samples = draw_samples(Random(0), NameSource(made_up=0.0), settings, tokenizer(), max_tokens=800)
    result = score(model, collate(samples, 0))

    for sample, row in zip(samples, result.right, strict=True):
        for answer, right in zip(sample.answers, row, strict=True):
            token_ids = list(sample.token_ids[: answer.start])
            while len(token_ids) < answer.stop:
                inputs = torch.tensor([token_ids])
                positions = torch.tensor([sample.position_ids[: len(token_ids)]])
                logits = model(inputs, attention_mask=torch.ones_like(inputs), position_ids=positions).logits
                token_ids.append(int(logits[0, -1].argmax()))
                if token_ids[-1] != sample.token_ids[len(token_ids) - 1]:
                    break
            assert right == (tuple(token_ids) == sample.token_ids[: answer.stop])


@pytest.mark.parametrize("stage", range(len(STAGES)))
def test_stages_are_passed_by_known_and_unknown_answers(stage: int) -> None:
    """A stage ends when both kinds of questions are answered well; the first stage asks only known ones."""

    def after(known: int, unknown: int) -> int:
        curriculum = Curriculum(stage=stage)
        for _ in range(120):
            curriculum = curriculum.after(STAGES[stage], (known, 10), (unknown, 10))
            if curriculum.stage != stage:
                break
        return curriculum.stage

    last = len(STAGES) - 1
    assert after(10, 10) == min(stage + 1, last)
    assert after(5, 10) == stage
    assert after(10, 5) == (stage if Curriculum(stage=stage).asks_unknown else stage + 1)
