"""The laws of `laws` over every chat template of `shapes` and every tokenizer of `kinds`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conftest import law_examples, some_of
from tests.templates import laws
from tests.templates.kinds import KINDS
from tests.templates.strategies import Answer, Answered, Draft, Split, Written, answers, chats, drafts, splits, texts
from tests.templates.subjects import LOSSLESS, REASONING, Chat, frozen_date, subject, subjects

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


@settings(max_examples=law_examples(0.1))
@given(
    chat=chats(),
    with_options=st.booleans(),
    reasoning=st.sampled_from(("", "", REASONING)),
    offset=st.integers(0, STEP - 1),
)
def test_a_conversation_has_the_tokens_of_the_chat_template(
    kind: str, chat: Chat, with_options: bool, reasoning: str, offset: int
) -> None:
    """A plain conversation has the token IDs of `apply_chat_template`, on the day of today, with and without options."""
    for each in subjects(kind, offset, STEP):
        laws.conversation_is_the_templates(each, chat, each.shape.options if with_options else {}, reasoning)


@settings(max_examples=law_examples(0.1))
@given(chat=chats(forged=True), offset=st.integers(0, STEP - 1))
def test_no_text_becomes_a_control_token(kind: str, chat: Chat, offset: int) -> None:
    """Texts with the written forms of control tokens have none of them, and are what the template makes of them."""
    for each in subjects(kind, offset, STEP):
        laws.texts_stay_texts(each, chat)


@settings(max_examples=law_examples(0.1))
@given(split=splits(), with_options=st.booleans(), offset=st.integers(0, STEP - 1))
def test_turns_of_a_schema_have_the_tokens_of_the_chat_template(
    kind: str, split: Split, with_options: bool, offset: int
) -> None:
    """Turns of a schema, and those of a prompt behind them, have the IDs of one conversation, or a warning says why."""
    with frozen_date():
        for each in subjects(kind, offset, STEP):
            laws.schema_has_the_tokens(each, split, each.shape.options if with_options else {})


@settings(max_examples=law_examples(0.1))
@given(draft=drafts(), with_options=st.booleans(), offset=st.integers(0, STEP - 1))
def test_no_difference_of_text_is_silent(kind: str, draft: Draft, with_options: bool, offset: int) -> None:
    """Modules, unions and slots in turns, and optional turns: the text is the template's, or a warning shows where not."""
    written = Written(draft)
    with frozen_date():
        for each in subjects(kind, offset, STEP):
            laws.differences_are_told(each, written, each.shape.options if with_options else {})


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
    """Text without turns has the token IDs of `tokenizer(text)`."""
    laws.text_has_the_tokens(subject("chatml", kind), text)
