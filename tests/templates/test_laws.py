"""The laws of `laws` over every chat template of `shapes` and every tokenizer of `kinds`."""

from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import law_examples, some_of
from tests.templates import laws
from tests.templates.kinds import KINDS
from tests.templates.strategies import Answer, Answered, answers, texts
from tests.templates.subjects import LOSSLESS, subject, subjects

pytestmark = pytest.mark.law
STEP = 3  # of the templates, every third one is used in an example
CHANGED_FIRST = Answered(None, tuple(Answer("", (text,), None) for text in ("a\n\na", "a", "a")))
"""An answer that a template may change, and others that it does not change."""


@pytest.fixture(scope="module", params=some_of(KINDS, 2))
def kind(request: pytest.FixtureRequest) -> str:
    """Return the name of a tokenizer. The tests of one tokenizer follow one another, since they share its subjects."""
    return str(request.param)


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    """Transformers warns where a template has no `generation` block."""
    from transformers import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(before)


@pytest.mark.parametrize("law", [laws.CONVERSATIONS, laws.CONTROLS, laws.SCHEMAS, laws.DIFFERENCES])
@settings(max_examples=law_examples(0.1))
@given(data=st.data(), with_options=st.booleans(), offset=st.integers(0, STEP - 1))
def test_laws_hold_for_every_template(
    kind: str, law: str, data: st.DataObject, with_options: bool, offset: int
) -> None:
    """Conversations, texts with forms of control tokens, turns of a schema, and modules in turns are the template's."""
    strategy, check = laws.LAWS[law]
    drawn = data.draw(strategy)
    for each in subjects(kind, offset, STEP):
        check(each, drawn, each.shape.options if with_options else {})


@pytest.mark.parametrize("lossless", LOSSLESS)
@settings(max_examples=law_examples(0.1))
@given(answered=answers(), offset=st.integers(0, STEP - 1))
@example(answered=CHANGED_FIRST, offset=0)  # by "newlines within contents"
def test_generated_answers_keep_their_tokens(lossless: str, answered: Answered, offset: int) -> None:
    """Answers that are given back keep their token IDs wherever the template renders them as they are."""
    for each in subjects(lossless, offset, STEP):
        laws.answers_keep_their_tokens(each, answered)


@settings(max_examples=law_examples(0.5))
@given(text=texts())
def test_text_without_turns_has_the_tokens_of_the_tokenizer(kind: str, text: str) -> None:
    laws.text_has_the_tokens(subject("chatml", kind), text)
