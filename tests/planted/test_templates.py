"""The laws of `laws` can fail: each planted fault, and each missing habit of a chat template, breaks one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import PromptCacheError
from tests.conftest import some_of
from tests.planted.template_faults import (
    ANSWERS,
    CONTROLS,
    CONVERSATIONS,
    DIFFERENCES,
    FAULTS,
    SCHEMAS,
    TEXTS,
    TemplateFault,
)
from tests.templates import laws
from tests.templates.shapes import SHAPES
from tests.templates.strategies import Written, answers, chats, drafts, splits, texts
from tests.templates.subjects import REASONING, Subject, frozen_date, make_subject

pytestmark = pytest.mark.law
CAUGHT = (AssertionError, LookupError, ValueError, PromptCacheError)
"""Errors of a broken law, or of the broken library on a valid case."""


def _options(data: st.DataObject, subject: Subject) -> Any:
    return subject.shape.options if data.draw(st.booleans()) else {}


def _conversations(data: st.DataObject, subject: Subject) -> None:
    reasoning = data.draw(st.sampled_from(("", "", REASONING)))
    laws.conversation_is_the_templates(subject, data.draw(chats()), _options(data, subject), reasoning)


def _controls(data: st.DataObject, subject: Subject) -> None:
    laws.texts_stay_texts(subject, data.draw(chats(forged=True)))


def _schemas(data: st.DataObject, subject: Subject) -> None:
    laws.schema_has_the_tokens(subject, data.draw(splits()), _options(data, subject))


def _differences(data: st.DataObject, subject: Subject) -> None:
    laws.differences_are_told(subject, Written(data.draw(drafts())), _options(data, subject))


def _answers(data: st.DataObject, subject: Subject) -> None:
    laws.answers_keep_their_tokens(subject, data.draw(answers()))


def _texts(data: st.DataObject, subject: Subject) -> None:
    laws.text_has_the_tokens(subject, data.draw(texts()))


LAWS: dict[str, Callable[[st.DataObject, Subject], None]] = {
    CONVERSATIONS: _conversations,
    CONTROLS: _controls,
    SCHEMAS: _schemas,
    DIFFERENCES: _differences,
    ANSWERS: _answers,
    TEXTS: _texts,
}


def probe(law: str, subject: Subject, num_examples: int = 500) -> None:
    """Run a law over random examples until the first one that breaks it."""

    @settings(
        max_examples=num_examples,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        with frozen_date() if law in (SCHEMAS, DIFFERENCES) else pytest.MonkeyPatch.context():
            LAWS[law](data, subject)

    run()


@pytest.mark.parametrize("fault", some_of(FAULTS, 8), ids=lambda fault: fault.name)
def test_planted_faults_are_caught(fault: TemplateFault) -> None:
    """A planted fault breaks the law that is registered for it."""
    with pytest.MonkeyPatch.context() as patch:
        fault.plant(patch)
        subject = make_subject(fault.template, fault.kind, SHAPES[fault.template].source)
        with pytest.raises(CAUGHT):
            probe(fault.law, subject)


@pytest.mark.parametrize("name", some_of(SHAPES, 8))
def test_the_laws_notice_a_missing_habit(name: str) -> None:
    """A library whose template lacks the habit of the template breaks the law: random conversations show each habit."""
    tampered = make_subject(name, "byte level with words", SHAPES[name].without_habit)

    with pytest.raises(AssertionError):
        probe(CONVERSATIONS, tampered, 1000)


def test_each_law_has_a_fault() -> None:
    """Every law has a planted fault, and each fault is registered once."""
    assert {fault.law for fault in FAULTS} == {*LAWS}
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
