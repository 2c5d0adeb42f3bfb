"""Lays a document out as a training or test sample: tokens, position IDs, loss weights, where the answers stand.

Comes in: a `Document`, a tokenizer, a random generator. Goes out: a `Sample` of plain tuples. Knows no tensors. The
look is that of a prompt with modules: pieces tokenized apart, position IDs with gaps where a module might have been.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from tokenizers import Tokenizer

from promptcache.demo.documents import Document, Fact, Question
from promptcache.demo.tokenizer import BEGIN, END, special_id

MAX_POSITIONS = 4096
_MAX_GAP = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Where one answer stands: tokens `[start, stop)`, its `<|end|>` included."""

    start: int
    stop: int
    known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One laid-out document with its questions and answers; `position_ids` rise, maybe with gaps."""

    token_ids: tuple[int, ...]
    position_ids: tuple[int, ...]
    weights: tuple[float, ...]
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSettings:
    """What a layout may have.

    Args:
        gaps: Share of samples with gaps between modules.
        slots: Share of samples with values tokenized apart, as a parameter's argument is.
        filled: Shares of the values that are so, one drawn for each of those samples.
    """

    gaps: float = 0.5
    slots: float = 0.25
    filled: tuple[float, ...] = (0.2, 0.5, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What holds for the whole of one sample: the share of values tokenized apart, and what parts facts."""

    filled: float
    separator: str


@dataclass(slots=True)
class _Writer:
    """Collects tokens; the only mutable thing here, alive for one sample."""

    tokenizer: Tokenizer
    rng: Random
    token_ids: list[int] = field(default_factory=list)
    position_ids: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    next_position: int = 0
    apart: set[Fact] = field(default_factory=set)  # whose values were tokenized apart

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


def lay_out(document: Document, tokenizer: Tokenizer, rng: Random, settings: LayoutSettings) -> Sample:
    """Write one document in one of the looks a prompt can have, followed by its questions and answers."""
    writer = _Writer(tokenizer, rng)
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


def _system_turn(writer: _Writer, document: Document, gaps: _Gaps, look: _Look) -> None:
    writer.header("system")
    _paragraphs(writer, document, gaps, look)
    writer.footer()


def _plain_text(writer: _Writer, document: Document, gaps: _Gaps, look: _Look) -> None:
    _paragraphs(writer, document, gaps, look)


def _one_user_turn(writer: _Writer, document: Document, gaps: _Gaps, look: _Look) -> None:
    """The turn stays open: the first question follows in it."""
    writer.header("user")
    _paragraphs(writer, document, gaps, look)


def _turn_each(writer: _Writer, document: Document, gaps: _Gaps, look: _Look) -> None:
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


def _paragraphs(writer: _Writer, document: Document, gaps: _Gaps, look: _Look) -> None:
    """Introduction and modules, each but the first one after a newline."""
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


def _module(writer: _Writer, module: Sequence[Fact | str], look: _Look) -> None:
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
    """A fact as it is tokenized; an answer has the same tokens as the document, so that copying is all it takes."""
    return (f"{fact.start} ", fact.value, ".") if apart else (fact.sentence,)


def _answer(writer: _Writer, question: Question) -> Answer:
    writer.header("assistant")
    start = len(writer.token_ids)
    for text in _pieces(question.fact, apart=question.fact in writer.apart):
        writer.text(text, answer=True)
    writer.footer(answer=True)
    return Answer(start=start, stop=len(writer.token_ids) - 1, known=question.known)
