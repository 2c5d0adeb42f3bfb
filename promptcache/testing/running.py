"""Running a law over the prompts of one schema, outside any test function.

Comes in: a law and a schema under test. Goes out: nothing, or the law's error for the smallest example. This file knows
no particular law.
"""

from __future__ import annotations

from functools import partial

from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy

from promptcache.testing.cases import invalid_prompts, named_modules, subject_prompts
from promptcache.testing.law import BrokenLaw, Law, Over
from promptcache.testing.laws import LAWS
from promptcache.testing.smallest import smallest_failing
from promptcache.testing.subject import PromptCase, SchemaSource, Subject

DEFAULT_EXAMPLES = 100


def check_laws(schema: SchemaSource, *, max_examples: int = DEFAULT_EXAMPLES) -> None:
    """Check every law that needs no model on one schema.

    Raises:
        BrokenLaw: the first law that does not hold, for the smallest example.
    """
    subject = Subject(schema)
    for law in LAWS:
        check_law(law, subject, max_examples=max_examples)


def check_law(law: Law, subject: Subject, *, max_examples: int = DEFAULT_EXAMPLES) -> None:
    """Check one law on one schema; the same examples every time."""
    if law.over is Over.SCHEMA:
        law.check(subject)
    elif law.over is Over.PROMPT:
        _over_prompts(law, subject, max_examples)
    else:
        _over_others(law, subject, max_examples)


def _over_prompts(law: Law, subject: Subject, max_examples: int) -> None:
    found: list[PromptCase] = []

    @_settings(max_examples)
    @given(case=subject_prompts(subject))
    def check(case: PromptCase) -> None:
        if _breaks(law, case):
            found.append(case)  # the last one is the simplest that Hypothesis finds
        law.check(case)

    try:
        check()
    except BrokenLaw as error:
        smallest = smallest_failing(subject, partial(_breaks, law), below=found[-1])
        if smallest is None:
            raise
        _raise_for(law, smallest, error)


def _breaks(law: Law, case: PromptCase) -> bool:
    try:
        law.check(case)
    except BrokenLaw:
        return True
    return False


def _raise_for(law: Law, case: PromptCase, found: BrokenLaw) -> None:
    """Raise what a law says of the smallest prompt, in place of what it said of another."""
    try:
        law.check(case)
    except BrokenLaw as error:
        error.add_note(case.report)
        raise error from found


def _over_others(law: Law, subject: Subject, max_examples: int) -> None:
    drawn: SearchStrategy[object] = (
        named_modules(subject.schema)
        if law.over is Over.NAMED
        else invalid_prompts(subject.schema, tokenizer=subject.tokenizer)
    )

    @_settings(max_examples)
    @given(about=drawn)
    def check(about: object) -> None:
        law.check(subject, about)

    check()


def _settings(max_examples: int) -> settings:
    return settings(
        max_examples=max_examples, deadline=None, database=None, derandomize=True, report_multiple_bugs=False
    )
