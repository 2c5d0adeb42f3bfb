"""Documents of the quality benchmark are what their sets say, and judges tell right answers from wrong ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice, pairwise

import pytest

from promptcache.bench.quality_documents import Contains, Matches, Quiz, contains
from promptcache.bench.quality_forms import FORMS
from promptcache.bench.quality_sets import FORM_SETS, GROUPS, LANGUAGE_SETS, LONG, SETS, SHORT, draw_quizzes
from promptcache.demo import MODEL_FOLDER
from promptcache.tokenizer import HubTokenizer

SIZED = [name for name in SETS if SETS[name].sized]


def drawn(name: str, count: int, *, seed: int = 0, module_tokens: int | None = None) -> list[Quiz]:
    return [*draw_quizzes(name, seed, count, module_tokens)]


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


@pytest.mark.parametrize(("text", "found"), [("K417.", True), ("#K417", True), ("K4170", False), ("K 417", False)])
def test_codes_are_words(text: str, found: bool) -> None:
    """A code of letters and digits is one word."""
    assert contains(text, "K417") is found


def test_all_values_are_needed_and_no_other_may_be_there() -> None:
    """A judge with several values wants all of them; one with others refuses an answer that names these too."""
    judge = Contains(values=("Anna", "Ben"), others=("Clara",))

    assert judge("Ben and Anna")
    assert not judge("Anna")
    assert not judge("Anna, Ben and Clara")


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (" the postman\nText: My cousin", True),
        ("The postman.", True),
        ("the postman", True),
        ("the postman stopped near the bus stop", False),
        ("postman", False),
        ("the postmaster", False),
        ("Text: x\nAnswer: the postman", False),
    ],
)
def test_the_first_line_is_the_mapped_value(answer: str, right: bool) -> None:
    """After examples, the first line has to be the value and nothing else; later lines do not count."""
    (question,) = next(quiz for quiz in drawn("few-shot", 200) if quiz.questions[0].answer == "the postman").questions

    assert isinstance(question.judge, Matches)
    assert question.judge(answer) is right


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


@pytest.mark.parametrize("name", [name for name in SIZED if name != "few-shot"])
@pytest.mark.parametrize("size", [SHORT, LONG])
def test_the_right_answer_stands_in_one_place(name: str, size: int) -> None:
    """Each value that a question asks for occurs once in its document, so that no other sentence can give it away.

    The answer of a form with two slots is in two pieces. A filler is no text of the document.
    """
    for quiz in drawn(name, 60, module_tokens=size):
        for question in quiz.questions:
            assert isinstance(question.judge, Contains)
            for value in question.judge.values:
                assert len(re.findall(rf"(?i)\b{value}\b", quiz.text)) == 1


def test_a_follow_up_names_town_and_value_in_two_modules() -> None:
    """No module of `follow-up` has both the town of the question and its answer; the value is in the next module."""
    for quiz in drawn("follow-up", 60):
        (question,) = quiz.questions
        town = question.text.split()[-1].rstrip("?")
        texts = ["".join(map(str, module)) for module in quiz.modules]
        (place,) = [index for index, text in enumerate(texts) if contains(text, town)]
        assert [index for index, text in enumerate(texts) if contains(text, question.answer)] == [place + 1]


def test_examples_decide_what_is_mapped() -> None:
    """The new case of `few-shot` allows two answers; only the examples tell which one is wanted."""
    wanted = {quiz.questions[0].answer.split()[0] in ("the", "a", "an", "my") for quiz in drawn("few-shot", 60)}
    assert wanted == {True}
    for quiz in drawn("few-shot", 60):
        answers = [line.removeprefix("Answer: ") for line in quiz.text.split("\n") if line.startswith("Answer: ")]
        sentences = [line.removeprefix("Text: ") for line in quiz.text.split("\n") if line.startswith("Text: ")]
        first = [text.lower().startswith(each) for text, each in zip(sentences, answers, strict=True)]
        assert len(set(first)) == 1
        asked = quiz.questions[0].text.removeprefix("Text: ").lower()
        assert asked.startswith(quiz.questions[0].answer) == first[0]


@pytest.mark.parametrize("size", [SHORT, LONG])
@pytest.mark.parametrize("name", SIZED)
def test_modules_have_their_size(name: str, size: int) -> None:
    """Modules have about the tokens that their size says; the demo tokenizer needs about 1.6 times as many."""
    tokenizer = HubTokenizer.from_folder(MODEL_FOLDER)
    lengths = [len(tokenizer.tokenize(text)) for quiz in drawn(name, 12, module_tokens=size) for text in _texts(quiz)]

    assert 0.8 * size < min(lengths)
    assert max(lengths) < 2.3 * size


def _texts(quiz: Quiz) -> Iterator[str]:
    for module in quiz.modules:
        yield "".join(piece if isinstance(piece, str) else piece.value for piece in module)


def test_short_documents_have_one_question_and_long_ones_several() -> None:
    """Questions share a document only in the long size, and their number is the one that was asked for."""
    assert [len(quiz.questions) for quiz in drawn("facts", 7, module_tokens=SHORT)] == [1] * 7
    assert [len(quiz.questions) for quiz in drawn("facts", 7, module_tokens=LONG)] == [3, 3, 1]


def test_questions_of_one_document_differ() -> None:
    """The questions that share a document are different ones."""
    for name in SIZED:
        for quiz in drawn(name, 9, module_tokens=LONG):
            assert len({question.text for question in quiz.questions}) == len(quiz.questions)


def test_groups_hold_every_set_once() -> None:
    """Each set is in one group."""
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(SETS)
    assert set(GROUPS["language"]) == set(LANGUAGE_SETS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("form-period", "The {} of {} is [?]."),
        ("form-space", "The {} of {} is [?] [?]."),
        ("form-joined", "The {} of {} is [?][?]."),
        ("form-quotes", 'The {} of {} is "[?]".'),
    ],
)
def test_slots_stand_where_the_form_says(name: str, expected: str) -> None:
    """The last sentence of each module of a form has its slots in the places of the form."""
    for quiz in islice(drawn(name, 5), 5):
        for module in quiz.modules:
            text = "".join(piece if isinstance(piece, str) else "[?]" for piece in module)
            start, _, rest = expected.partition("{}")
            found = text[text.rindex(start) :]
            assert found.endswith(rest.rpartition("{}")[2])


def test_special_arguments_are_in_their_forms() -> None:
    """Forms have an empty argument, an argument that fills its slot, and one equal to its filler beside a changed one."""
    slots = {
        name: [p for quiz in drawn(name, 5) for m in quiz.modules for p in m if not isinstance(p, str)]
        for name in FORMS
    }

    assert [slot.value for slot in slots["form-empty"]][1::2] == [""] * 20
    assert all(slot.placeholder for slot in slots["form-empty"][1::2])
    assert {slot.length for slot in slots["form-full"]} == {None}
    for name, filler in (("form-default", "default"), ("form-placeholder", "placeholder")):
        same = [slot.value == getattr(slot, filler) for slot in slots[name]]
        assert same == [True, False] * 20
    assert set(slots) == set(FORM_SETS)
