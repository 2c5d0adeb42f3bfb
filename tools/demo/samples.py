"""Samples of the demo model: documents as tokens, position IDs and loss weights; and the score of a forward pass.

A sample looks like a prompt with modules: pieces are tokenized separately, and position IDs have gaps where a module
was left out. An answer is right if each of its tokens is the most probable one after the right tokens before it. That
equals greedy decoding of the whole answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from tools.demo.documents import DocumentSettings, Fact, FactSheet, NameSource, Question, make_document
from tools.demo.tokenizer import BEGIN, END, special_id

MAX_POSITIONS = 4096
_MAX_GAP = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The tokens `[start, stop)` of one answer, its `<|end|>` included."""

    start: int
    stop: int
    known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One document with its questions and answers as tokens. `position_ids` increase, possibly with gaps."""

    token_ids: tuple[int, ...]
    position_ids: tuple[int, ...]
    weights: tuple[float, ...]
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSettings:
    """Settings of a layout.

    Args:
        gaps: Share of samples with gaps between modules.
        slots: Share of samples with values that are tokenized separately, like a parameter's argument.
        filled: Possible shares of such values in one of those samples.
    """

    gaps: float = 0.5
    slots: float = 0.25
    filled: tuple[float, ...] = (0.2, 0.5, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """Settings of one sample: the share of values tokenized separately, and the separator of facts."""

    filled: float
    separator: str


@dataclass(slots=True)
class _SampleWriter:
    """Collects the tokens of one sample."""

    tokenizer: Tokenizer
    rng: Random
    token_ids: list[int] = field(default_factory=list)
    position_ids: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    next_position: int = 0
    apart: set[Fact] = field(default_factory=set)  # facts whose values were tokenized separately

    def text(self, text: str, *, answer: bool = False) -> None:
        if text:
            self._put(self.tokenizer.encode(text, add_special_tokens=False).ids, answer=answer)

    def special(self, token: str, *, answer: bool = False) -> None:
        self._put([special_id(self.tokenizer, token)], answer=answer)

    def header(self, role: str) -> None:
        self.special(f"<|{role}|>")
        self.text("\n")

    def footer(self, *, answer: bool = False) -> None:
        self.special(END, answer=answer)
        self.text("\n")

    def gap(self, length: int) -> None:
        self.next_position += length

    def _put(self, token_ids: list[int], *, answer: bool) -> None:
        self.token_ids += token_ids
        self.position_ids += range(self.next_position, self.next_position + len(token_ids))
        self.next_position += len(token_ids)
        self.weights += [1.0 if answer else 0.0] * len(token_ids)


def lay_out(document: FactSheet, tokenizer: Tokenizer, rng: Random, settings: LayoutSettings) -> Sample:
    """Return one document as tokens, in a random form that a prompt can have, followed by its questions and answers."""
    writer = _SampleWriter(tokenizer, rng)
    writer.special(BEGIN)
    budget = MAX_POSITIONS - 96 * len(document.facts) - 800
    gaps = _Gaps(rng, max_gap=min(_MAX_GAP, budget // (len(document.modules) + 1)), on=rng.random() < settings.gaps)
    filled = rng.choice(settings.filled) if rng.random() < settings.slots else 0.0
    look = _Look(filled=filled, separator=rng.choice((" ", " ", "\n")))
    write = rng.choices((_system_turn, _plain_text, _turn_each, _one_user_turn), weights=(45, 25, 20, 10))[0]
    questions = list(document.questions)
    first = questions.pop(0) if write is _one_user_turn else None
    write(writer, document, gaps, look)
    answers = []
    if first is not None:
        writer.text(f"\n{first.text}")
        writer.footer()
        answers.append(_answer(writer, first))
    for question in questions:
        writer.header("user")
        writer.text(question.text)
        writer.footer()
        answers.append(_answer(writer, question))
    return Sample(
        token_ids=tuple(writer.token_ids),
        position_ids=tuple(writer.position_ids),
        weights=tuple(writer.weights),
        answers=tuple(answers),
    )


@dataclass(frozen=True, slots=True)
class _Gaps:
    rng: Random
    max_gap: int
    on: bool

    def draw(self) -> int:
        if not self.on or self.max_gap < 1 or self.rng.random() < 0.3:
            return 0
        return self.rng.randint(1, self.max_gap)


def _system_turn(writer: _SampleWriter, document: FactSheet, gaps: _Gaps, look: _Look) -> None:
    writer.header("system")
    _paragraphs(writer, document, gaps, look)
    writer.footer()


def _plain_text(writer: _SampleWriter, document: FactSheet, gaps: _Gaps, look: _Look) -> None:
    _paragraphs(writer, document, gaps, look)


def _one_user_turn(writer: _SampleWriter, document: FactSheet, gaps: _Gaps, look: _Look) -> None:
    """Write the document into a user turn that stays open for the first question."""
    writer.header("user")
    _paragraphs(writer, document, gaps, look)


def _turn_each(writer: _SampleWriter, document: FactSheet, gaps: _Gaps, look: _Look) -> None:
    role = writer.rng.choice(("user", "user", "system"))
    if document.introduction:
        writer.header("system")
        writer.text(document.introduction)
        writer.footer()
    for module in document.modules:
        writer.gap(gaps.draw())
        writer.header(role)
        _module(writer, module, look)
        writer.footer()


def _paragraphs(writer: _SampleWriter, document: FactSheet, gaps: _Gaps, look: _Look) -> None:
    """Write introduction and modules, separated by newlines."""
    begun = False
    if document.introduction:
        writer.text(document.introduction)
        begun = True
    for module in document.modules:
        writer.gap(gaps.draw())
        if begun:
            writer.text("\n")
        _module(writer, module, look)
        begun = True
    writer.gap(gaps.draw())


def _module(writer: _SampleWriter, module: Sequence[Fact | str], look: _Look) -> None:
    for i, item in enumerate(module):
        space = look.separator if i else ""
        if isinstance(item, Fact) and writer.rng.random() < look.filled:
            writer.apart.add(item)
            start, value, stop = _pieces(item, apart=True)
            writer.text(space + start)
            writer.text(value)
            writer.gap(writer.rng.randint(0, 12))
            writer.text(stop)
        else:
            writer.text(space + (item.sentence if isinstance(item, Fact) else item))


def _pieces(fact: Fact, *, apart: bool) -> tuple[str, ...]:
    """Return the texts of a fact that are tokenized separately. An answer has the same tokens as its document."""
    return (f"{fact.start} ", fact.value, ".") if apart else (fact.sentence,)


def _answer(writer: _SampleWriter, question: Question) -> Answer:
    writer.header("assistant")
    start = len(writer.token_ids)
    for text in _pieces(question.fact, apart=question.fact in writer.apart):
        writer.text(text, answer=True)
    writer.footer(answer=True)
    return Answer(start=start, stop=len(writer.token_ids) - 1, known=question.known)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatch:
    """Samples as tensors, padded at the end. Padding has weight 0."""

    input_ids: Tensor  # [B, T]
    position_ids: Tensor  # [B, T]
    weights: Tensor  # [B, T]
    answers: tuple[tuple[Answer, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingScore:
    """The loss, with its graph, and `right[i][j]`: whether answer j of sample i is right."""

    loss: Tensor
    right: tuple[tuple[bool, ...], ...]


def draw_samples(
    rng: Random, names: NameSource, settings: DocumentSettings, tokenizer: Tokenizer, max_tokens: int
) -> tuple[Sample, ...]:
    """Return samples of one kind until the padded batch would exceed `max_tokens`; at least one."""
    samples: list[Sample] = []
    longest = 0
    while True:
        sample = lay_out(make_document(rng, names, settings), tokenizer, rng, LayoutSettings())
        longest = max(longest, len(sample.token_ids))
        if samples and longest * (len(samples) + 1) > max_tokens:
            return tuple(samples)
        samples.append(sample)


def collate(samples: Sequence[Sample], pad_token_id: int) -> TrainingBatch:
    """Pad samples to the longest one. The positions of padding continue."""
    length = max(len(sample.token_ids) for sample in samples)

    def padded(row: Callable[[Sample], Sequence[float]], fill: float, dtype: torch.dtype) -> Tensor:
        rows = [[*row(sample), *[fill] * (length - len(sample.token_ids))] for sample in samples]
        return torch.tensor(rows, dtype=dtype)

    return TrainingBatch(
        input_ids=padded(lambda sample: sample.token_ids, pad_token_id, torch.long),
        position_ids=padded(lambda sample: sample.position_ids, 0, torch.long),
        weights=padded(lambda sample: sample.weights, 0.0, torch.float32),
        answers=tuple(sample.answers for sample in samples),
    )


def score(model: LlamaForCausalLM, batch: TrainingBatch) -> TrainingScore:
    """Run one causal forward pass with explicit positions. Logits are computed only where a token has a weight."""
    hidden = model.model(
        input_ids=batch.input_ids,
        # Without a mask transformers takes a gap in the positions for the start of another packed sequence.
        attention_mask=torch.ones_like(batch.input_ids),
        position_ids=batch.position_ids,
        use_cache=False,
    ).last_hidden_state  # [B, T, hidden]
    wanted = batch.weights[:, 1:] > 0  # [B, T - 1]
    logits = model.lm_head(hidden[:, :-1][wanted]).float()  # [wanted, vocabulary]
    targets, weights = batch.input_ids[:, 1:][wanted], batch.weights[:, 1:][wanted]
    losses = functional.cross_entropy(logits, targets, reduction="none")
    hits = torch.zeros_like(wanted)
    hits[wanted] = logits.detach().argmax(-1) == targets
    right = tuple(
        tuple(bool(hits[row, answer.start - 1 : answer.stop - 1].all()) for answer in answers)
        for row, answers in enumerate(batch.answers)
    )
    return TrainingScore(loss=(losses * weights).sum() / weights.sum(), right=right)
