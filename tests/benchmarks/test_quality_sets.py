"""Documents of the quality benchmark are what their sets say, and judges tell right answers from wrong ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest

from benchmarks.quality.documents import (
    Contains,
    Every,
    Quiz,
    QuizQuestion,
    QuizSlot,
    QuizTurn,
    contains,
    question,
)
from benchmarks.quality.sets import (
    LONG,
    MEDIUM,
    SETS,
    SHORT,
    WORK_SETS,
    draw_quizzes,
)
from promptcache.demo import MODEL_FOLDER
from promptcache.tokenizer import HubTokenizer

pytestmark = pytest.mark.slow  # documents change when the benchmark does

SIZED = [name for name in SETS if SETS[name].sized]


def drawn(name: str, count: int, *, seed: int = 0, module_tokens: int | None = None) -> list[Quiz]:
    return [*draw_quizzes(name, seed, count, module_tokens)]


def value_judge(asked: QuizQuestion) -> Contains:
    """Return the judge of the value, without those of the form."""
    judge = asked.judge.judges[0] if isinstance(asked.judge, Every) else asked.judge
    assert isinstance(judge, Contains)
    return judge


@pytest.mark.parametrize(
    "answer", ["Anna", "The mayor is Anna.", "anna", "It is ANNA, I think", '"Anna"', "Anna\nBerg"]
)
def test_an_answer_may_say_more_than_the_value(answer: str) -> None:
    """The value counts as whole words, in any case, wherever it is."""
    assert Contains(values=("Anna",))(answer)


@pytest.mark.parametrize("answer", ["", "Ann", "Annas", "Joanna", "An na", "Anna_", "Hannah is the mayor"])
def test_a_part_of_a_word_is_not_the_value(answer: str) -> None:
    """Near misses of the value are wrong."""
    assert not Contains(values=("Anna",))(answer)


def test_all_values_are_needed_and_no_other_may_be_there() -> None:
    """A judge with several values wants all of them; one with others refuses an answer that names these too."""
    judge = Contains(values=("Anna", "Ben"), others=("Clara",))

    assert judge("Ben and Anna")
    assert not judge("Anna")
    assert not judge("Anna, Ben and Clara")


@pytest.mark.parametrize("name", SETS)
def test_judges_accept_the_right_answer_only(name: str) -> None:
    """The judge of each question accepts its own answer, and neither an empty one nor that of another document."""
    quizzes = drawn(name, 40)
    accepted = 0
    for quiz, other in pairwise(quizzes):
        (question,) = quiz.questions
        assert question.judge(question.answer)
        assert not question.judge("")
        accepted += question.judge(other.questions[0].answer)

    assert accepted < 0.6 * len(quizzes)  # documents share a few values


@pytest.mark.parametrize("name", SETS)
def test_documents_differ_and_come_again(name: str) -> None:
    """200 documents of a seed are all different, are the same in a second draw, and begin a longer draw."""
    quizzes = drawn(name, 200)

    assert len({(quiz.text, quiz.questions[0].text) for quiz in quizzes}) == len(quizzes) == 200
    assert drawn(name, 200) == quizzes
    assert drawn(name, 50) == quizzes[:50]
    assert drawn(name, 50, seed=1) != quizzes[:50]


@pytest.mark.parametrize("name", [name for name in SIZED if name not in ("few-shot", "classes")])
@pytest.mark.parametrize("size", [SHORT, LONG])
def test_the_right_answer_stands_in_one_place(name: str, size: int) -> None:
    """Each value that a question asks for occurs once in its document, so that no other sentence can give it away.

    The answer of a form with two slots is in two pieces. A filler is no text of the document.
    """
    for quiz in drawn(name, 60, module_tokens=size):
        for asked in quiz.questions:
            for value in value_judge(asked).values:
                assert len(re.findall(rf"(?i)\b{value}\b", quiz.text)) == 1


@pytest.mark.parametrize("size", [SHORT, MEDIUM, LONG])
@pytest.mark.parametrize("name", SIZED)
def test_modules_have_their_size(name: str, size: int) -> None:
    """Modules have about the tokens that their size says; the demo tokenizer needs 1.6 times as many for prose, and more for code."""
    tokenizer = HubTokenizer.from_folder(MODEL_FOLDER)
    lengths = [len(tokenizer.tokenize(text)) for quiz in drawn(name, 12, module_tokens=size) for text in _texts(quiz)]

    assert 0.8 * size < min(lengths)
    assert max(lengths) < 2.5 * size


def _texts(quiz: Quiz) -> Iterator[str]:
    for module in quiz.modules:
        yield "".join(map(_text, module))


def _text(piece: str | QuizSlot | QuizTurn) -> str:
    match piece:
        case QuizSlot():
            return piece.value
        case QuizTurn():
            return f"{piece.role}: {piece.text}\n"
        case _:
            return piece


@pytest.mark.parametrize("size", [SHORT, MEDIUM, LONG])
@pytest.mark.parametrize("name", WORK_SETS)
def test_values_of_other_modules_are_refused(name: str, size: int) -> None:
    """A judge refuses the right answer with each other value in place of its own, and with such a value beside it.

    In `parts`, other parts have other values of the same kind, if any.
    """
    num_others = 0
    for quiz in drawn(name, 30, module_tokens=size):
        for asked in quiz.questions:
            judge = value_judge(asked)
            (value,) = judge.values
            assert asked.judge(asked.answer)
            assert re.search(rf"(?i)\b{value}\b", quiz.text)
            for other in judge.others:
                num_others += 1
                assert re.search(rf"(?i)\b{other}\b", quiz.text)
                assert not asked.judge(re.sub(rf"(?i)\b{value}\b", other, asked.answer))
                assert not asked.judge(f"{asked.answer} {other}")

    assert num_others >= 30


def test_a_value_of_the_question_may_be_in_the_answer() -> None:
    """An answer may repeat the question. Another value that the question does not have is wrong."""
    asked = question("Who came in right after Anna?", "Ben", ["Anna", "Ben", "Clara"])

    assert asked.judge("Ben came in right after Anna.")
    assert not asked.judge("Anna")
    assert not asked.judge("Ben and Clara")


def test_a_right_value_in_a_wrong_form_is_refused() -> None:
    """`mixed` wants the value in the form that one or two of its modules demand, and has every form."""
    rules = set()
    for quiz in drawn("mixed", 60):
        (asked,) = quiz.questions
        assert isinstance(asked.judge, Every)
        fact, *forms = asked.judge.judges
        plain = f"The value is {value_judge(asked).values[0]}."
        assert fact(plain)
        assert not asked.judge(plain)
        demands = [text for text in _texts(quiz) if "Rule: " in text]
        assert len(demands) == len(forms)
        rules.add(frozenset(re.findall(r"Rule: (\w+)", " ".join(demands))))

    assert rules == {frozenset(each) for each in (["write"], ["begin"], ["end"], ["give"], ["give", "write"])}


def test_the_order_of_modules_decides() -> None:
    """In `order`, another order of the modules gives another answer: no module says when its event happened."""
    for quiz in drawn("order", 60):
        (asked,) = quiz.questions
        texts = [*_texts(quiz)]
        (place,) = [index for index, text in enumerate(texts) if contains(text, asked.answer)]
        if "first" in asked.text or "last" in asked.text:
            assert place == (0 if "first" in asked.text else 3)
        else:
            (named,) = re.findall(r"after (\w+)", asked.text)
            assert contains(texts[place - 1], named)
        assert not any(contains(text, word) for text in texts for word in ("first", "second", "last"))
