"""Checks of one schema: its examples, and a test over drawn prompts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from hypothesis import Phase, given, settings

from promptcache.diagnostics import InvalidValue, LanguageError
from promptcache.language import Example, example_prompt
from promptcache.testing.cases import subject_prompts
from promptcache.testing.cover import covering_combinations, plain_case
from promptcache.testing.subject import PromptCase, SchemaSource, Subject


def check_prompts(
    source: SchemaSource | Subject, check: Callable[[PromptCase], None], *, max_examples: int = 100
) -> None:
    """Check a test over drawn prompts of a schema, the same ones every time.

    Args:
        source: A path, XML text, or a schema.
        check: The test; it raises `AssertionError` for a prompt that breaks it.
        max_examples: The number of prompts to draw.

    Raises:
        AssertionError: that of `check` for the simplest prompt found, which is a note of the error.
    """
    subject = source if isinstance(source, Subject) else Subject(source)

    @settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        derandomize=True,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),  # a profile may have other ones
    )
    @given(case=subject_prompts(subject))
    def run(case: PromptCase) -> None:
        check(case)

    run()


def tested_examples(subject: Subject) -> Iterator[tuple[str, Example]]:
    """Yield the examples that state an expectation, each with its name or its number among all."""
    for number, example in enumerate(subject.schema.examples, 1):
        if example.has_expectation:
            yield example.name or f"number {number}", example


def check_example(subject: Subject, example: Example) -> None:
    """Plan an example that is valid.

    Raises:
        LanguageError: an argument is longer than its slot, or there is nothing to prefill; at its place in the schema.
    """
    if example.valid is not False:
        subject.plan(example_prompt(example))


def check_combinations(subject: Subject) -> None:
    """Check few combinations of modules, which show every pair of choices; errors are those of `check_combination`."""
    for modules in covering_combinations(subject):
        check_combination(subject, modules)


def check_combination(subject: Subject, modules: Collection[str]) -> None:
    """Plan the plainest prompt that uses `modules`, which the notes of an error name.

    Raises:
        LanguageError: an argument or default does not fit, or a module cannot be planned.
        InvalidValue: no text was found for the slot of a required parameter.
    """
    try:
        plain_case(subject, modules)
    except (LanguageError, InvalidValue) as error:
        error.add_note(f"modules: {', '.join(sorted(modules)) or 'none'}")
        raise
