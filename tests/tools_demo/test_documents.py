"""Laws of the generated documents."""

from random import Random

import pytest

from tools.demo import words
from tools.demo.documents import UNKNOWN, DocumentSettings, FactSheet, NameSource, make_document, syllable_word

SETTINGS = DocumentSettings(num_facts=9, max_questions=8, unknown_share=0.3)


def draw(seed: int, num_documents: int = 60) -> list[FactSheet]:
    rng = Random(seed)
    return [make_document(rng, NameSource(pieces=("ka", "lo")), SETTINGS) for _ in range(num_documents)]


def test_documents_are_reproducible() -> None:
    """The same seed gives the same documents, another seed others."""
    assert draw(3) == draw(3)
    assert draw(3) != draw(4)


@pytest.mark.parametrize("document", draw(5, 30))
def test_answers_to_known_questions_stand_in_the_document(document: FactSheet) -> None:
    """The answer to a known question is a sentence of the document; an unknown fact starts no sentence of it."""
    for question in document.questions:
        assert (question.fact.sentence in document.text) == question.known
        assert (f"{question.fact.start} " in document.text) == question.known


def test_unknown_questions_are_answered_unknown() -> None:
    """A question that the document does not answer has the fixed answer, and there are such questions."""
    unknown = [q.fact for document in draw(6) for q in document.questions if not q.known]

    assert unknown
    assert all(fact.sentence == f"The {fact.attribute} of {fact.entity} is {UNKNOWN}." for fact in unknown)


def test_facts_do_not_contradict_each_other() -> None:
    """No document has two values for one attribute of one entity."""
    for document in draw(7):
        pairs = [(fact.attribute.lower(), fact.entity.lower()) for fact in document.facts]
        assert len(set(pairs)) == len(pairs) == SETTINGS.num_facts


def test_unseen_syllables_are_unseen() -> None:
    """Words for training and words of unseen syllables have no syllable in common."""
    rng = Random(8)

    def syllables(word: str) -> set[str]:
        return {s for s in (c + v for c in words.CONSONANTS for v in words.VOWELS) if word.startswith(s)}

    unseen = [syllable_word(rng, unseen=True) for _ in range(200)]
    seen = [syllable_word(rng) for _ in range(200)]
    assert all(syllables(word) & words.UNSEEN_SYLLABLES for word in unseen)
    assert all(syllables(word) - words.UNSEEN_SYLLABLES for word in seen)
