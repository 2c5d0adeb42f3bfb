"""Laws of question sets and of the check of answers."""

from random import Random

import pytest

from tools.demo.documents import DocumentSettings, Fact, NameSource, make_document
from tools.demo.questions import Case, QuestionSet, Rate, draw_cases, is_right

DISH = Fact(attribute="best dish", entity="Miami", value="crab cakes")
UNSAID = Fact(attribute="best dish", entity="Tokyo")


def draw(asked: str, names: str = "words", count: int = 60) -> list[Case]:
    return [*draw_cases(QuestionSet(num_entities=4, num_attributes=3, asked=asked, names=names), 3, count)]


@pytest.mark.parametrize("asked", ["fact", "left out", "near"])
def test_cases_are_reproducible_and_extend(asked: str) -> None:
    """The same seed gives the same cases; a higher count starts with the same ones."""
    assert draw(asked, count=20) == draw(asked, count=60)[:20]


@pytest.mark.parametrize("asked", ["fact", "left out", "near"])
def test_the_right_answer_is_what_the_document_says(asked: str) -> None:
    """A known fact is in the document; an unknown one is in no module."""
    for case in draw(asked):
        said = {(fact.attribute, fact.entity): fact.value for module in case.present for fact in module}
        fact = case.question.fact
        assert said.get((fact.attribute, fact.entity), "unknown") == fact.value
        assert case.question.known == (asked == "fact")


def test_a_left_out_module_is_the_one_asked_about() -> None:
    """The question is about the absent module's entity, which no other module names."""
    for case in draw("left out"):
        assert case.absent is not None
        assert case.modules[case.absent][0].entity == case.question.fact.entity
        assert len(case.present) == 4


def test_near_names_share_a_word_with_a_present_one() -> None:
    """A near name is not in the document, and shares a word with one that is."""
    for case in draw("near"):
        entities = [module[0].entity.lower() for module in case.present]
        near = case.question.fact.entity.lower()
        assert near not in entities
        assert any(set(near.split()) & set(entity.split()) for entity in entities)


def test_no_set_is_drawn_in_training() -> None:
    """No document of a question set is among those of the first training batches."""
    rng = Random("batch 0 0")
    settings = DocumentSettings(num_facts=3, max_questions=12, unknown_share=0.0)
    trained = {make_document(rng, NameSource(), settings).facts for _ in range(200)}
    assert not trained & {module for case in draw("fact") for module in case.modules}


@pytest.mark.parametrize(
    "answer", ["The best dish of Miami is crab cakes.", "crab cakes", "crab cakes.", " crab cakes\n"]
)
def test_right_answers_are_the_sentence_or_its_value(answer: str) -> None:
    """The whole sentence and the value alone are right, with any whitespace around them."""
    assert is_right(answer, DISH)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        ".",
        "crab",
        "cakes.",
        "Crab cakes.",
        "crab cakes and onion soup",
        "The best dish of Miami is crab.",
        "The best dish of Miami is crab cakes",
        "The best dish of Paris is crab cakes.",
        "The best beach of Miami is crab cakes.",
        "The best dish of Miami is onion soup. The best dish of Miami is crab cakes.",
        "The best dish of Miami is unknown.",
        "unknown",
    ],
)
def test_other_answers_are_wrong(answer: str) -> None:
    """Part of the value, another name, a longer answer, and "unknown" for a known fact are wrong."""
    assert not is_right(answer, DISH)


def test_unknown_is_right_where_nothing_is_told() -> None:
    """For an unknown fact only "unknown" is right."""
    assert is_right("The best dish of Tokyo is unknown.", UNSAID)
    assert not is_right("The best dish of Tokyo is crab cakes.", UNSAID)


def test_wilson_interval_is_the_published_one() -> None:
    """Wilson's interval for 81 of 263 is that of Newcombe 1998, table I: 0.2553 to 0.3662."""
    low, high = Rate(right=81, asked=263).interval
    assert (round(low, 4), round(high, 4)) == (0.2553, 0.3662)
