"""Trains the demo model: `python -m promptcache.demo.train --folder OUT --checkpoint FILE --steps N`.

Comes in: a seed and a number of steps. Goes out: a folder transformers loads, a checkpoint, a log. Every batch is drawn
from the seed and the step's number, so that stopping and resuming changes nothing. On CPU the same seed, threads and
library versions give the same weights.
"""

import argparse
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from promptcache.demo.architecture import make_config, make_model
from promptcache.demo.batches import Batch, Score, collate, draw_samples, score
from promptcache.demo.curriculum import Progress
from promptcache.demo.names import NameSource
from promptcache.demo.tokenizer import PAD, save_tokenizer, single_token_texts, special_id, train_tokenizer, twins

_MUON_LR = 0.004
_log = logging.getLogger("promptcache.demo.train")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """How to train.

    Args:
        seed: Of the weights and of every batch.
        steps: Optimizer steps in all.
        warmup_steps: Steps over which the learning rate rises.
        decay_steps: Last steps, over which it falls to 2 %.
        batch_tokens: Tokens per batch at most, padding included.
        muon_lr: Of hidden matrices.
        adam_lr: Of norms and biases.
        embedding_lr: Of embeddings, which serve as output weights too: a higher one blurs rare tokens.
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
        """Learning rate at a step, as a share of the full one: up, level, down."""
        rising = min(1.0, (step + 1) / self.warmup_steps)
        falling = min(1.0, (self.steps - step) / max(1, self.decay_steps))
        return rising * max(0.02, falling)


class Trainer:
    """A model, its optimizers and its progress; `step()` moves all three by one batch."""

    def __init__(self, settings: TrainSettings, tokenizer: Tokenizer, config: LlamaConfig) -> None:
        self.settings = settings
        self.tokenizer = tokenizer
        self.model: LlamaForCausalLM = make_model(config, twins(tokenizer), settings.seed)
        self.progress = Progress()
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

    def step(self) -> Score:
        """Draw one batch and learn from it."""
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
        self.progress = self.progress.after(num_facts, *count(batch, result))
        self.num_steps += 1
        self.num_tokens += batch.input_ids.numel()
        self.elapsed_s += time.perf_counter() - started
        return result

    def _next_batch(self) -> tuple[int, Batch]:
        rng = Random(f"batch {self.settings.seed} {self.num_steps}")
        names = NameSource(pieces=self._pieces, made_up=self.progress.made_up_share)
        settings = self.progress.settings(rng)
        samples = draw_samples(rng, names, settings, self.tokenizer, self.settings.batch_tokens)
        return settings.num_facts, collate(samples, self._pad)

    def _set_rate(self, rate: float) -> None:
        for optimizer, full in zip(self._optimizers, self._rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = full * rate

    def save(self, path: Path) -> None:
        """Write a checkpoint; the old one stays until the new one is whole."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "progress": self.progress.as_dict(),
            "counts": (self.num_steps, self.num_tokens, self.elapsed_s),
        }
        temporary = path.with_suffix(".part")
        torch.save(state, temporary)
        temporary.replace(path)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint."""
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.progress = Progress(**state["progress"])
        self.num_steps, self.num_tokens, self.elapsed_s = state["counts"]

    def export(self, folder: Path) -> None:
        """Write the folder that transformers loads, weights in fp16."""
        half = LlamaForCausalLM(self.model.config)
        half.load_state_dict(self.model.state_dict())
        half.half().save_pretrained(folder)  # type: ignore[no-untyped-call]  # transformers 5.23
        save_tokenizer(self.tokenizer, folder)


def count(batch: Batch, result: Score) -> tuple[tuple[int, int], tuple[int, int]]:
    """(right, asked) of known questions, and of unknown ones."""
    pairs = [(a.known, right) for answers, row in zip(batch.answers, result.right, strict=True)
             for a, right in zip(answers, row, strict=True)]  # fmt: skip
    known = [right for is_known, right in pairs if is_known]
    unknown = [right for is_known, right in pairs if not is_known]
    return (sum(known), len(known)), (sum(unknown), len(unknown))


def train(trainer: Trainer, minutes: float) -> Iterator[Score]:
    """Step until the settings' steps are done or the minutes of this run are over."""
    end = time.perf_counter() + 60 * minutes
    while trainer.num_steps < trainer.settings.steps and time.perf_counter() < end:
        yield trainer.step()


def main() -> None:
    """Train, log, save and export; see the arguments."""
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
            progress = trainer.progress
            _log.info(
                "step %d tokens %.2fM minutes %.1f loss %.4f facts %d known %.3f unknown %.3f tokens/s %.0f",
                trainer.num_steps, trainer.num_tokens / 1e6, trainer.elapsed_s / 60, loss / 50, progress.max_facts,
                progress.known, progress.unknown, trainer.num_tokens / trainer.elapsed_s,
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
