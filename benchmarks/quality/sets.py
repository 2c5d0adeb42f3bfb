"""Sets of questions of `python -m benchmarks quality`: how documents are drawn, and how answers are judged.

Sets that start with "demo-" are what the demo model was trained on. All others are tasks in modules of about 40, 150 or
400 tokens. A small chat model can do those of the group "language"; "work" needs one with about a billion parameters.
The same seed gives the same documents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from random import Random

from benchmarks.quality.documents import Contains, Matches, Quiz, QuizPiece, QuizQuestion, QuizSlot
from benchmarks.quality.formats import draw_code, draw_tables, draw_tools
from benchmarks.quality.forms import FORMS, draw_form
from benchmarks.quality.prose import SUBJECTS, event, padded, padding_for, told, towns
from benchmarks.quality.work import draw_bilingual, draw_classes, draw_mixed, draw_order, draw_parts
from tools.demo.documents import Fact
from tools.demo.questions import Case, QuestionSet, draw_cases, is_right

SHORT, MEDIUM, LONG = 40, 150, 400
"""Approximate tokens of a module. Long documents have several questions each, short ones have one."""

_INSTRUCTION = "Answer the question from these notes."
_EXAMPLE_TOKENS = 22
_OTHER_SEED = 1_000_003  # documents of this distance in seeds are others
_ADDRESSED = (
    *("neighbor", "captain", "doctor", "professor", "teacher", "colleague", "farmer", "sailor", "painter", "cousin"),
    *("sister", "uncle", "reader", "customer", "member", "partner"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuizSet:
    """A set of questions.

    Attributes:
        draw: Endless documents of a seed, with modules of about so many tokens.
        sized: Whether the modules can have several sizes.
        max_new_tokens: Limit of an answer.
    """

    draw: Callable[[int, int], Iterator[Quiz]]
    sized: bool = True
    max_new_tokens: int = 24


def draw_quizzes(
    name: str, seed: int, count: int, module_tokens: int | None = None, num_absent: int = 0
) -> Iterator[Quiz]:
    """Yield documents of a set until they have `count` questions.

    Args:
        name: In `SETS`.
        seed: Seed of the documents.
        count: Number of questions.
        module_tokens: Approximate tokens of each module; None is `SHORT`.
        num_absent: Modules of other documents that each schema has as well, at random places.
    """
    size = module_tokens or SHORT
    others = _modules(SETS[name].draw(seed + _OTHER_SEED, size))
    for number, quiz in enumerate(SETS[name].draw(seed, size)):
        rng = Random(f"absent {name} {seed} {number}")
        places = [rng.randint(0, len(quiz.modules) + index) for index in range(num_absent)]
        questions = quiz.questions[: 1 if size < LONG else count][:count]
        yield replace(quiz, questions=questions).beside([*islice(others, num_absent)], places)
        count -= len(questions)
        if count == 0:
            return


def _modules(quizzes: Iterator[Quiz]) -> Iterator[tuple[QuizPiece, ...]]:
    return (module for quiz in quizzes for module in quiz.modules)


def _endless(name: str, draw: Callable[[Random, int], Quiz], seed: int, module_tokens: int) -> Iterator[Quiz]:
    rng = Random(f"{name} {seed} {module_tokens}")
    while True:
        quiz = draw(rng, module_tokens)
        yield replace(quiz, instruction=quiz.instruction or (_INSTRUCTION if quiz.turns else ""))


def _facts(rng: Random, module_tokens: int) -> Quiz:
    """Two facts about a town in each of four modules."""
    places, subjects = towns(rng, 4), rng.sample(sorted(SUBJECTS), 2)
    values = {subject: rng.sample(SUBJECTS[subject], 4) for subject in subjects}
    modules = tuple(
        (padded(rng, " ".join(f"The {each} of {town} is {values[each][index]}." for each in subjects), module_tokens),)
        for index, town in enumerate(places)
    )
    asked = rng.sample([(index, subject) for index in range(4) for subject in subjects], 3)
    questions = tuple(_question(subject, places[index], values[subject][index]) for index, subject in asked)
    return Quiz(modules=modules, questions=questions)


def _follow_up(rng: Random, module_tokens: int) -> Quiz:
    """Three pairs of modules: the first names a town, the second says something about "this town"."""
    places, subject = towns(rng, 3), rng.choice(sorted(SUBJECTS))
    values = rng.sample(SUBJECTS[subject], 3)
    modules: list[tuple[QuizPiece, ...]] = []
    for town, value in zip(places, values, strict=True):
        first, second = f"The next town is {town}.", f"The {subject} of this town is {value}."
        modules.append((" ".join([*padding_for(rng, first, module_tokens), first]),))
        modules.append((" ".join([second, *padding_for(rng, second, module_tokens)]),))
    questions = tuple(
        _question(subject, town, value, [each for each in values if each != value])
        for town, value in rng.sample([*zip(places, values, strict=True)], 3)
    )
    return Quiz(modules=tuple(modules), questions=questions, refers={1: 0, 3: 2, 5: 4})


def _few_shot(rng: Random, module_tokens: int) -> Quiz:
    """Examples of one mapping, from a sentence to the person or to the place in it."""
    wanted = rng.choice(("who", "where"))
    num_examples = max(1, round(module_tokens / _EXAMPLE_TOKENS))
    modules = tuple(("\n".join(_example(event(rng), wanted) for _ in range(num_examples)),) for _ in range(4))
    questions = tuple(_example_question(event(rng), wanted) for _ in range(3))
    return Quiz(modules=modules, questions=questions, turns=False)


def _example(parts: Mapping[str, str], wanted: str) -> str:
    return f"Text: {told(parts)}\nAnswer: {parts[wanted]}"


def _example_question(parts: Mapping[str, str], wanted: str) -> QuizQuestion:
    answer = parts[wanted]
    judge = Matches(pattern=rf"(?i){re.escape(answer)}\.?(\n.*)?")
    return QuizQuestion(text=_example(parts, wanted).removesuffix(f" {answer}"), answer=answer, judge=judge)


def _instructions(rng: Random, module_tokens: int) -> Quiz:
    """Three modules of facts about a town, and one with the beginning that a letter has to have."""
    (town,), subjects = towns(rng, 1), rng.sample(sorted(SUBJECTS), 3)
    beginning = f"Dear {rng.choice(_ADDRESSED)}"
    sentences = [f"The {subject} of {town} is {rng.choice(SUBJECTS[subject])}." for subject in subjects]
    sentences.insert(rng.randrange(4), f"The letter begins with these words: {beginning},")
    question = QuizQuestion(
        text=f"Write the letter. It is about {town}.", answer=f"{beginning},", judge=Contains(values=(beginning,))
    )
    return Quiz(
        modules=tuple((padded(rng, each, module_tokens),) for each in sentences),
        questions=(question,),
        instruction="Write a text that follows these notes.",
    )


def _list(rng: Random, module_tokens: int) -> Quiz:
    """Three guests in three modules, and a question for all of them."""
    guests = rng.sample(SUBJECTS["mayor"], 3)
    modules = tuple(
        (padded(rng, f"Guest {number} is {guest}.", module_tokens),) for number, guest in enumerate(guests, 1)
    )
    judge = Contains(values=tuple(guests))
    question = QuizQuestion(text="Who are the guests? Name all three.", answer=", ".join(guests), judge=judge)
    return Quiz(modules=modules, questions=(question,))


def _question(subject: str, town: str, value: str, others: Sequence[str] = ()) -> QuizQuestion:
    return QuizQuestion(
        text=f"What is the {subject} of {town}?", answer=value, judge=Contains(values=(value,), others=tuple(others))
    )


def _demo_draw(questions: QuestionSet, arguments: bool, seed: int, _module_tokens: int) -> Iterator[Quiz]:
    count = 1
    drawn = 0
    while True:  # a higher count starts with the cases of a lower one
        count *= 2
        for case in islice(draw_cases(questions, seed, count), drawn, None):
            yield _demo_quiz(case, arguments=arguments)
        drawn = count


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole:
    """The answer is the fact's sentence or value, and nothing more."""

    fact: Fact

    def __call__(self, answer: str) -> bool:
        return is_right(answer, self.fact)


def _demo_quiz(case: Case, *, arguments: bool) -> Quiz:
    fact = case.question.fact
    question = QuizQuestion(text=case.question.text, answer=fact.sentence, judge=_Whole(fact=fact))
    modules = tuple(_demo_module(module, arguments=arguments) for module in case.modules)
    return Quiz(modules=modules, questions=(question,), absent=frozenset([] if case.absent is None else [case.absent]))


def _demo_module(module: Sequence[Fact], *, arguments: bool) -> tuple[QuizPiece, ...]:
    if not arguments:
        return (" ".join(fact.sentence for fact in module),)
    pieces: list[QuizPiece] = []
    for number, fact in enumerate(module):
        pieces += [f"{'. ' * bool(number)}{fact.start} ", QuizSlot(value=fact.value)]
    return (*pieces, ".")


def _demo(*, arguments: bool = False, asked: str = "fact", names: str = "words") -> QuizSet:
    questions = QuestionSet(num_entities=4, num_attributes=3, asked=asked, names=names)
    return QuizSet(draw=partial(_demo_draw, questions, arguments), sized=False, max_new_tokens=48)


DEMO_SETS = {
    "demo-facts": _demo(),
    "demo-left-out": _demo(asked="left out"),
    "demo-near": _demo(asked="near"),
    "demo-unseen": _demo(names="unseen"),
    "demo-arguments": _demo(arguments=True),
}
"""Sets for the demo model: 4 optional modules of 3 facts. An answer is right only as a whole.

`demo-facts` asks about one fact, `demo-left-out` about a fifth module that the prompt does not select, and `demo-near`
about a name that resembles one of the document. `demo-unseen` uses names and values that the demo model was not trained
on. `demo-arguments` passes the values as arguments.
"""

LANGUAGE_SETS = {
    "facts": QuizSet(draw=partial(_endless, "facts", _facts)),
    "follow-up": QuizSet(draw=partial(_endless, "follow-up", _follow_up)),
    "instructions": QuizSet(draw=partial(_endless, "instructions", _instructions)),
    "list": QuizSet(draw=partial(_endless, "list", _list), max_new_tokens=48),
    "few-shot": QuizSet(draw=partial(_endless, "few-shot", _few_shot)),
}

FORM_SETS = {name: QuizSet(draw=partial(_endless, name, partial(draw_form, form))) for name, form in FORMS.items()}

_WORK = {
    "mixed": draw_mixed,
    "code": draw_code,
    "tables": draw_tables,
    "tools": draw_tools,
    "parts": draw_parts,
    "classes": draw_classes,
    "bilingual": draw_bilingual,
    "order": draw_order,
}
WORK_SETS = {name: QuizSet(draw=partial(_endless, name, draw)) for name, draw in _WORK.items()}
"""Sets in the shape of work: rules, code, tables, tools, reports, classes, two languages. Each has 4 modules."""

SETS = {**DEMO_SETS, **LANGUAGE_SETS, **WORK_SETS, **FORM_SETS}

GROUPS = {
    "demo": tuple(DEMO_SETS),
    "language": tuple(LANGUAGE_SETS),
    "work": tuple(WORK_SETS),
    "forms": tuple(FORM_SETS),
}
"""Groups of sets by name."""
