"""Trains the demo model: `python -m tools.demo.train --folder OUT --checkpoint FILE --steps N`.

Every batch is drawn from the seed and the number of its step, so that stopping and resuming changes nothing. On a CPU
the same seed, threads and library versions give the same weights. Documents get longer, and unanswerable questions
more frequent, as answers become right.
"""

import argparse
import logging
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from tools.demo.architecture import make_config, make_model
from tools.demo.documents import DocumentSettings, NameSource
from tools.demo.samples import TrainingBatch, TrainingScore, collate, draw_samples, score
from tools.demo.tokenizer import PAD, save_tokenizer, single_token_texts, special_id, train_tokenizer, twins

STAGES = (3, 8, 16, 24)
_PASS_KNOWN, _PASS_UNKNOWN = 0.7, 0.6
_FIRST_STAGE_WITH_UNKNOWN = 1
_MEMORY = 0.92  # of the running accuracies, per batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Curriculum:
    """The current stage, and running accuracies of whole answers on its longest documents."""

    stage: int = 0
    known: float = 0.0
    unknown: float = 0.0
    num_batches: int = 0

    @property
    def max_facts(self) -> int:
        """Facts in the longest documents of this stage."""
        return STAGES[self.stage]

    @property
    def asks_unknown(self) -> bool:
        """Whether there are unanswerable questions yet.

        Before copying works, such questions teach the model to answer "unknown" always.
        """
        return self.stage >= _FIRST_STAGE_WITH_UNKNOWN

    @property
    def unknown_share(self) -> float:
        """Share of unanswerable questions.

        It is higher if they are answered worse than the others, and low until the others are right.
        """
        if not self.asks_unknown:
            return 0.0
        return min(0.35, max(0.05, 0.25 + 0.4 * (self.known - self.unknown))) if self.known > 0.55 else 0.05

    @property
    def made_up_share(self) -> float:
        """Share of made-up names; low at first, because they are long in tokens."""
        return min(0.4, 0.2 + 0.1 * self.stage)

    def settings(self, rng: Random) -> DocumentSettings:
        """Return the settings of the next batch: mostly documents of this stage's length, otherwise shorter ones."""
        num_facts = self.max_facts if rng.random() < 0.6 else rng.randint(1, self.max_facts)
        return DocumentSettings(num_facts=num_facts, max_questions=12, unknown_share=self.unknown_share)

    def after(self, num_facts: int, known: tuple[int, int], unknown: tuple[int, int]) -> "Curriculum":
        """Return the curriculum after one batch, maybe in the next stage. `known` and `unknown` are (right, asked)."""
        if num_facts != self.max_facts:
            return self
        now = replace(
            self,
            known=_running(self.known, known),
            unknown=_running(self.unknown, unknown),
            num_batches=self.num_batches + 1,
        )
        passed_unknown = now.unknown > _PASS_UNKNOWN or not self.asks_unknown
        passed = now.known > _PASS_KNOWN and passed_unknown and now.num_batches >= 20
        if passed and self.stage + 1 < len(STAGES):
            return replace(now, stage=self.stage + 1, num_batches=0, known=now.known - 0.1)
        return now

    def as_dict(self) -> dict[str, float]:
        """Return the fields, for a checkpoint."""
        return asdict(self)


def _running(before: float, counts: tuple[int, int]) -> float:
    right, asked = counts
    return before if asked == 0 else _MEMORY * before + (1 - _MEMORY) * right / asked


_MUON_LR = 0.004
_log = logging.getLogger("tools.demo.train")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """Settings of a training run.

    Args:
        seed: Seed of the weights and of every batch.
        steps: Number of optimizer steps.
        warmup_steps: Steps over which the learning rate rises.
        decay_steps: Last steps, over which it falls to 2 %.
        batch_tokens: Maximum number of tokens per batch, padding included.
        muon_lr: Learning rate of hidden matrices.
        adam_lr: Learning rate of norms and biases.
        embedding_lr: Learning rate of embeddings, which are output weights too; a higher one blurs rare tokens.
    """

    seed: int
    steps: int
    warmup_steps: int = 150
    decay_steps: int = 1000
    batch_tokens: int = 3072
    muon_lr: float = _MUON_LR
    adam_lr: float = 0.001
    embedding_lr: float = 0.002

    def rate(self, step: int) -> float:
        """Return the learning rate at a step as a share of the full one: rising, constant, falling."""
        rising = min(1.0, (step + 1) / self.warmup_steps)
        falling = min(1.0, (self.steps - step) / max(1, self.decay_steps))
        return rising * max(0.02, falling)


class Trainer:
    """A model, its optimizers and its curriculum; `step()` advances all three by one batch."""

    def __init__(self, settings: TrainSettings, tokenizer: Tokenizer, config: LlamaConfig) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self.model: LlamaForCausalLM = make_model(config, twins(tokenizer), settings.seed)
        self.curriculum = Curriculum()
        self.num_steps = 0
        self.num_tokens = 0
        self.elapsed_s = 0.0
        self._pieces = single_token_texts(tokenizer)
        self._pad = special_id(tokenizer, PAD)
        parameters = dict(self.model.named_parameters())
        hidden = [p for name, p in parameters.items() if p.ndim == 2 and "embed" not in name]
        others = [p for p in parameters.values() if p.ndim != 2]
        embeddings = [p for name, p in parameters.items() if "embed" in name]
        self._rates = (settings.muon_lr, settings.adam_lr, settings.embedding_lr)
        self._optimizers = (
            torch.optim.Muon(hidden, weight_decay=0.01, momentum=0.95),
            torch.optim.AdamW(others, betas=(0.9, 0.99), weight_decay=0.0),
            torch.optim.AdamW(embeddings, betas=(0.9, 0.99), weight_decay=0.0),
        )

    def step(self) -> TrainingScore:
        """Draw one batch and train on it."""
        started = time.perf_counter()
        num_facts, batch = self._next_batch()
        self._set_rate(self.settings.rate(self.num_steps))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = score(self.model, batch)
        torch.autograd.backward(result.loss)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self._optimizers:
            optimizer.step()  # type: ignore[no-untyped-call]  # torch 2.13 annotates AdamW, not Muon
            optimizer.zero_grad(set_to_none=True)
        self.curriculum = self.curriculum.after(num_facts, *count(batch, result))
        self.num_steps += 1
        self.num_tokens += batch.input_ids.numel()
        self.elapsed_s += time.perf_counter() - started
        return result

    def _next_batch(self) -> tuple[int, TrainingBatch]:
        rng = Random(f"batch {self.settings.seed} {self.num_steps}")
        names = NameSource(pieces=self._pieces, made_up=self.curriculum.made_up_share)
        settings = self.curriculum.settings(rng)
        samples = draw_samples(rng, names, settings, self.tokenizer, self.settings.batch_tokens)
        return settings.num_facts, collate(samples, self._pad)

    def _set_rate(self, rate: float) -> None:
        for optimizer, full in zip(self._optimizers, self._rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = full * rate

    def save(self, path: Path) -> None:
        """Write a checkpoint. The old one is replaced when the new one is complete."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "progress": self.curriculum.as_dict(),
            "counts": (self.num_steps, self.num_tokens, self.elapsed_s),
        }
        temporary = path.with_suffix(".part")
        torch.save(state, temporary)
        temporary.replace(path)

    def load(self, path: Path) -> None:
        """Continue from a checkpoint."""
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.curriculum = Curriculum(**state["progress"])
        self.num_steps, self.num_tokens, self.elapsed_s = state["counts"]

    def export(self, folder: Path) -> None:
        """Write the folder that transformers loads, with weights in float16."""
        half = LlamaForCausalLM(self.model.config)
        half.load_state_dict(self.model.state_dict())
        half.half().save_pretrained(folder)  # type: ignore[no-untyped-call]  # transformers 5.23
        save_tokenizer(self.tokenizer, folder)


def count(batch: TrainingBatch, result: TrainingScore) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (right, asked) of known questions, and of unknown ones."""
    pairs = [(a.known, right) for answers, row in zip(batch.answers, result.right, strict=True)
             for a, right in zip(answers, row, strict=True)]  # fmt: skip
    known = [right for is_known, right in pairs if is_known]
    unknown = [right for is_known, right in pairs if not is_known]
    return (sum(known), len(known)), (sum(unknown), len(unknown))


def train(trainer: Trainer, minutes: float) -> Iterator[TrainingScore]:
    """Step until all steps are done, or until `minutes` are over."""
    end = time.perf_counter() + 60 * minutes
    while trainer.num_steps < trainer.settings.steps and time.perf_counter() < end:
        yield trainer.step()


def main() -> None:
    """Train, log, save and export."""
    arguments = _parser().parse_args()
    torch.set_num_threads(arguments.threads)
    logging.basicConfig(filename=arguments.log, level=logging.INFO, format="%(asctime)s %(message)s")
    tokenizer = train_tokenizer(arguments.seed)
    settings = TrainSettings(
        seed=arguments.seed,
        steps=arguments.steps,
        decay_steps=arguments.decay_steps,
        batch_tokens=arguments.batch_tokens,
        muon_lr=arguments.muon_lr,
    )
    trainer = Trainer(settings, tokenizer, make_config(tokenizer))
    if arguments.checkpoint.exists():
        trainer.load(arguments.checkpoint)
    _run(trainer, arguments)


def _run(trainer: Trainer, arguments: argparse.Namespace) -> None:
    saved = time.perf_counter()
    loss = 0.0
    for result in train(trainer, arguments.minutes):
        loss += result.loss.item()
        if trainer.num_steps % 50 == 0:
            stage = trainer.curriculum
            _log.info(
                "step %d tokens %.2fM minutes %.1f loss %.4f facts %d known %.3f unknown %.3f tokens/s %.0f",
                trainer.num_steps, trainer.num_tokens / 1e6, trainer.elapsed_s / 60, loss / 50, stage.max_facts,
                stage.known, stage.unknown, trainer.num_tokens / trainer.elapsed_s,
            )  # fmt: skip
            loss = 0.0
        if time.perf_counter() - saved > 60 * arguments.save_minutes:
            trainer.save(arguments.checkpoint)
            trainer.export(arguments.folder)
            saved = time.perf_counter()
    trainer.save(arguments.checkpoint)
    trainer.export(arguments.folder)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Train the demo model; run again to go on from the checkpoint.")
    parser.add_argument("--folder", type=Path, required=True, help="where the model is exported")
    parser.add_argument("--checkpoint", type=Path, required=True, help="read if it exists, and written")
    parser.add_argument("--log", type=Path, help="a file; without it, standard error")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--decay-steps", type=int, default=1000)
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--muon-lr", type=float, default=_MUON_LR)
    parser.add_argument("--minutes", type=float, default=1e9, help="stop this run earlier")
    parser.add_argument("--save-minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    return parser


if __name__ == "__main__":
    main()
