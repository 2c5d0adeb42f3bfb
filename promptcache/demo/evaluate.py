"""Measures a trained model: `python -m promptcache.demo.evaluate FOLDER`.

Comes in: a model folder. Goes out: whole answers right, per set of documents, with 95 % intervals, as a Markdown table.
Every question is asked alone, about a document drawn from a seed that training never uses. Knows nothing of caches.
"""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from promptcache.demo.batches import collate, score
from promptcache.demo.documents import Document, Fact, Question, grid_facts, question_text
from promptcache.demo.names import NameSource
from promptcache.demo.samples import LayoutSettings, Sample, lay_out
from promptcache.demo.tokenizer import single_token_texts

_BATCH_TOKENS = 6000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Answers right out of those asked."""

    right: int
    asked: int

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.right / self.asked:.1f} ({100 * low:.1f}-{100 * high:.1f})"

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval."""
        n, p, z = self.asked, self.right / self.asked, 1.96
        middle, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (middle - spread) / (1 + z * z / n), (middle + spread) / (1 + z * z / n)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionSet:
    """Documents of `num_entities` modules with `num_attributes` facts each, and one question about each document.

    Args:
        left_out: Ask about a module that was left out: the right answer is "unknown".
        names: "words" (real-looking), "mixed" (as in training) or "unseen" (syllables that training never uses).
        gaps: Share of documents with gaps between the position IDs of modules.
        slots: Share of documents in which every value is tokenized apart, as an argument is.
    """

    num_entities: int
    num_attributes: int
    left_out: bool = False
    names: str = "words"
    gaps: float = 0.5
    slots: float = 0.0


def _question_sets() -> Iterator[QuestionSet]:
    for shape in ((1, 1), (2, 3), (4, 1), (4, 3), (8, 1), (4, 6), (8, 3), (24, 1)):
        yield QuestionSet(num_entities=shape[0], num_attributes=shape[1])
    for shape in ((2, 3), (4, 1), (4, 3), (8, 1), (8, 3)):
        yield QuestionSet(num_entities=shape[0], num_attributes=shape[1], left_out=True)
    for names in ("mixed", "unseen"):
        for left_out in (False, True):
            yield QuestionSet(num_entities=4, num_attributes=3, names=names, left_out=left_out)
    for gaps in (0.0, 1.0):
        yield QuestionSet(num_entities=4, num_attributes=3, gaps=gaps)
    yield QuestionSet(num_entities=4, num_attributes=3, slots=0.5)


QUESTION_SETS = tuple(_question_sets())


def make_samples(question_set: QuestionSet, tokenizer: Tokenizer, *, seed: int, count: int) -> Iterator[Sample]:
    """Draw `count` documents of a set, each laid out with its one question."""
    rng = Random(f"evaluate {seed} {question_set}")
    names = _names(question_set.names, tokenizer)
    layout = LayoutSettings(gaps=question_set.gaps, slots=question_set.slots, filled=(1.0,))
    for _ in range(count):
        modules = grid_facts(rng, names, question_set.num_entities + question_set.left_out, question_set.num_attributes)
        fact = rng.choice(rng.choice(modules))
        if question_set.left_out:
            modules = [module for module in modules if fact not in module]
            fact = Fact(attribute=fact.attribute, entity=fact.entity)
        question = Question(text=question_text(rng, fact), fact=fact)
        document = Document(introduction=None, modules=tuple(map(tuple, modules)), questions=(question,))
        yield lay_out(document, tokenizer, rng, layout)


@torch.inference_mode()
def measure(model: LlamaForCausalLM, samples: Sequence[Sample]) -> Rate:
    """Count whole answers right, the closing token included."""
    waiting = sorted(samples, key=lambda sample: len(sample.token_ids))
    right, pad_token_id = 0, model.config.pad_token_id
    assert isinstance(pad_token_id, int)
    while waiting:
        size = max(1, _BATCH_TOKENS // len(waiting[-1].token_ids))
        chunk, waiting = waiting[-size:], waiting[:-size]
        result = score(model, collate(chunk, pad_token_id))
        right += sum(map(sum, result.right))
    return Rate(right=right, asked=sum(len(sample.answers) for sample in samples))


def _names(kind: str, tokenizer: Tokenizer) -> NameSource:
    if kind == "words":
        return NameSource(made_up=0.0)
    return NameSource(pieces=single_token_texts(tokenizer)) if kind == "mixed" else NameSource(unseen=True)


def table(model: LlamaForCausalLM, tokenizer: Tokenizer, *, seed: int, count: int) -> Iterator[str]:
    """Lines of a Markdown table, one per question set."""
    yield "| modules x facts | names | gaps | slots | asked about | whole answers right, % (95 % interval) |"
    yield "|---|---|---|---|---|---|"
    for question_set in QUESTION_SETS:
        rate = measure(model, [*make_samples(question_set, tokenizer, seed=seed, count=count)])
        asked = "a module left out" if question_set.left_out else "a fact of the document"
        shape = f"{question_set.num_entities} x {question_set.num_attributes}"
        shares = f"{question_set.gaps:.0%} | {question_set.slots:.0%}"
        yield f"| {shape} | {question_set.names} | {shares} | {asked} | {rate} |"


def main() -> None:
    """Print the table for a folder."""
    parser = argparse.ArgumentParser(description="Measure whole answers of the demo model.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=400, help="questions per set")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tokenizer = Tokenizer.from_file(str(arguments.folder / "tokenizer.json"))
    model = LlamaForCausalLM.from_pretrained(arguments.folder, dtype=torch.float32)
    for line in table(model, tokenizer, seed=arguments.seed, count=arguments.count):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
