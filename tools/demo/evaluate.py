"""Measures the demo model: `python -m tools.demo.evaluate FOLDER` prints a Markdown table.

Each row is the share of whole answers that are right, with a 95 % interval. Every question is asked alone, about a
document from a seed that training never uses. No cache is used: `python -m benchmarks quality` asks the same questions
through schemas.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM

from tools.demo.documents import FactSheet
from tools.demo.questions import QuestionSet, Rate, draw_cases
from tools.demo.samples import LayoutSettings, Sample, collate, lay_out, score
from tools.demo.tokenizer import single_token_texts

_BATCH_TOKENS = 6000


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRow:
    """One row of the table: a question set, and the layout of its documents.

    Args:
        questions: The question set.
        gaps: Share of documents with gaps between the position IDs of modules.
        slots: Share of documents in which every value is tokenized separately, like an argument.
    """

    questions: QuestionSet
    gaps: float = 0.5
    slots: float = 0.0

    def __str__(self) -> str:
        asked = {"fact": "a fact of the document", "left out": "a module left out", "near": "a name like one present"}
        shape = f"{self.questions.num_entities} x {self.questions.num_attributes}"
        return f"{shape} | {self.questions.names} | {self.gaps:.0%} | {self.slots:.0%} | {asked[self.questions.asked]}"


def _rows() -> Iterator[EvaluationRow]:
    for shape in ((1, 1), (2, 3), (4, 1), (4, 3), (8, 1), (4, 6), (8, 3), (24, 1)):
        yield EvaluationRow(questions=_set(shape))
    for shape in ((2, 3), (4, 1), (4, 3), (8, 1), (8, 3)):
        yield EvaluationRow(questions=_set(shape, asked="left out"))
    yield EvaluationRow(questions=_set((4, 3), asked="near"))
    for names in ("mixed", "unseen"):
        for asked in ("fact", "left out"):
            yield EvaluationRow(questions=_set((4, 3), asked=asked, names=names))
    for gaps in (0.0, 1.0):
        yield EvaluationRow(questions=_set((4, 3)), gaps=gaps)
    for slots in (0.5, 1.0):
        yield EvaluationRow(questions=_set((4, 3)), slots=slots)


def _set(shape: tuple[int, int], *, asked: str = "fact", names: str = "words") -> QuestionSet:
    return QuestionSet(num_entities=shape[0], num_attributes=shape[1], asked=asked, names=names)


def make_samples(row: EvaluationRow, tokenizer: Tokenizer, *, seed: int, count: int) -> Iterator[Sample]:
    """Yield `count` documents of a row, each laid out with its one question."""
    rng = Random(f"layout {seed} {row}")
    layout = LayoutSettings(gaps=row.gaps, slots=row.slots, filled=(1.0,))
    for case in draw_cases(row.questions, seed, count, single_token_texts(tokenizer)):
        document = FactSheet(introduction=None, modules=case.present, questions=(case.question,))
        yield lay_out(document, tokenizer, rng, layout)


@torch.inference_mode()
def measure(model: LlamaForCausalLM, samples: Sequence[Sample]) -> Rate:
    """Return the share of whole answers that are right, the closing token included."""
    waiting = sorted(samples, key=lambda sample: len(sample.token_ids))
    right, pad_token_id = 0, model.config.pad_token_id
    assert isinstance(pad_token_id, int)
    while waiting:
        size = max(1, _BATCH_TOKENS // len(waiting[-1].token_ids))
        chunk, waiting = waiting[-size:], waiting[:-size]
        result = score(model, collate(chunk, pad_token_id))
        right += sum(map(sum, result.right))
    return Rate(right=right, asked=sum(len(sample.answers) for sample in samples))


def table(model: LlamaForCausalLM, tokenizer: Tokenizer, *, seed: int, count: int) -> Iterator[str]:
    """Yield the lines of a Markdown table, one per question set."""
    yield "| modules x facts | names | gaps | slots | asked about | whole answers right, % (95 % interval) |"
    yield "|---|---|---|---|---|---|"
    for row in _rows():
        yield f"| {row} | {measure(model, [*make_samples(row, tokenizer, seed=seed, count=count)])} |"


def main() -> None:
    """Print the table for a model folder."""
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
