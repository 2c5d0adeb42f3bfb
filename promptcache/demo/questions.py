"""Sets of questions about documents that training never saw, and the judge of an answer.

Comes in: a kind of document and a seed. Goes out: cases of plain strings; for an answer, whether it is right; for many,
how sure their share is. Knows neither tokens nor models nor schemas.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from promptcache.demo.documents import Fact, Question, grid_facts, question_text, similar_entity
from promptcache.demo.names import NameSource


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionSet:
    """Documents of `num_entities` modules with `num_attributes` facts each, and one question about each document.

    Args:
        asked: "fact": about a fact of the document. "left out": about a module that was left out, so that the right
            answer is "unknown". "near": about a name that is like one of the document's; "unknown", too.
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
        absent: Index of the module that is left out, None if all are present.
        question: With the fact that answers it.
    """

    modules: tuple[tuple[Fact, ...], ...]
    absent: int | None
    question: Question

    @property
    def present(self) -> tuple[tuple[Fact, ...], ...]:
        """The modules that the document shows."""
        return tuple(module for index, module in enumerate(self.modules) if index != self.absent)


def draw_cases(question_set: QuestionSet, seed: int, count: int, pieces: Sequence[str] = ()) -> Iterator[Case]:
    """Draw `count` cases; the same arguments give the same cases, and a higher count begins with those of a lower one.

    Args:
        question_set: Their kind.
        seed: Of this draw; no seed of training draws the same.
        count: How many.
        pieces: Texts of single tokens, of which "mixed" names are made in part.
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
    """Whether an answer is the fact's sentence or its value alone, to the letter; whatever says more is wrong."""
    return answer.strip() in (fact.sentence, f"{fact.value}.", fact.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Answers right out of those asked."""

    right: int
    asked: int

    def __str__(self) -> str:
        low, high = self.interval
        return f"{100 * self.share:.1f} ({100 * low:.1f}-{100 * high:.1f})"

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.right / self.asked

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % score interval of a proportion."""
        n, p, z = self.asked, self.share, 1.96
        middle, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return (middle - spread) / (1 + z * z / n), (middle + spread) / (1 + z * z / n)
