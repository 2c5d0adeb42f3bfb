"""Question sets about documents that training never used, and the check of an answer.

A case is plain text: this file knows no tokens, models or schemas.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from tools.demo.documents import Fact, NameSource, Question, grid_facts, question_text, similar_entity


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionSet:
    """Documents of `num_entities` modules with `num_attributes` facts each, and one question about each document.

    Args:
        asked: The kind of question. "fact" asks for a fact of the document. "left out" asks about a module that was
            left out, and "near" about a name similar to one of the document; the right answer to both is "unknown".
        names: "words" (real-looking), "mixed" (as in training) or "unseen" (syllables that training never uses).
    """

    num_entities: int
    num_attributes: int
    asked: str = "fact"
    names: str = "words"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One document with one question.

    Args:
        modules: Facts by module.
        absent: Index of the module that is left out; None if all are present.
        question: The question, with the fact that answers it.
    """

    modules: tuple[tuple[Fact, ...], ...]
    absent: int | None
    question: Question

    @property
    def present(self) -> tuple[tuple[Fact, ...], ...]:
        """The modules that the document shows."""
        return tuple(module for index, module in enumerate(self.modules) if index != self.absent)


def draw_cases(question_set: QuestionSet, seed: int, count: int, pieces: Sequence[str] = ()) -> Iterator[Case]:
    """Yield `count` cases.

    The same arguments give the same cases. A higher count starts with the cases of a lower one.

    Args:
        question_set: The kind of cases.
        seed: Seed of this draw; training never draws the same cases.
        count: Number of cases.
        pieces: Texts of single tokens, for "mixed" names.
    """
    rng = Random(f"questions {seed} {question_set}")
    names = _names(question_set.names, tuple(pieces))
    for _ in range(count):
        yield _draw_case(rng, names, question_set)


def _draw_case(rng: Random, names: NameSource, kind: QuestionSet) -> Case:
    left_out = kind.asked == "left out"
    modules = grid_facts(rng, names, kind.num_entities + left_out, kind.num_attributes)
    index = rng.randrange(len(modules))
    fact = rng.choice(modules[index])
    if left_out:
        fact = Fact(attribute=fact.attribute, entity=fact.entity)
    if kind.asked == "near":
        fact = Fact(attribute=fact.attribute, entity=_unlike_all(rng, modules, fact.entity))
    return Case(
        modules=tuple(map(tuple, modules)),
        absent=index if left_out else None,
        question=Question(text=question_text(rng, fact), fact=fact),
    )


def _unlike_all(rng: Random, modules: Sequence[Sequence[Fact]], entity: str) -> str:
    taken = {module[0].entity.lower() for module in modules}
    while True:
        near = similar_entity(rng, entity)
        if near.lower() not in taken and len(near) <= 40:
            return near


def _names(kind: str, pieces: tuple[str, ...]) -> NameSource:
    if kind == "words":
        return NameSource(made_up=0.0)
    return NameSource(pieces=pieces) if kind == "mixed" else NameSource(unseen=True)


def is_right(answer: str, fact: Fact) -> bool:
    """Whether an answer is exactly the fact's sentence or its value. An answer that says more is wrong."""
    return answer.strip() in (fact.sentence, f"{fact.value}.", fact.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Number of right answers out of those asked."""

    right: int
    asked: int

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.share:.1f} ({100 * low:.1f}-{100 * high:.1f})"

    @property
    def share(self) -> float:
        """The share of right answers, from 0 to 1."""
        return self.right / self.asked

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % score interval of a proportion."""
        n, p, z = self.asked, self.share, 1.96
        middle, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (middle - spread) / (1 + z * z / n), (middle + spread) / (1 + z * z / n)
