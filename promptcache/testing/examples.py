"""Testing one example of a schema: it is planned, as every prompt of that schema is.

Comes in: a schema under test and one of its examples. Goes out: nothing, or the fault. That an example is valid as its
author says, and contains what it should, was checked with the schema; what needs a tokenizer is checked here.
"""

from __future__ import annotations

from collections.abc import Iterator

from promptcache.language.examples import example_prompt
from promptcache.language.schema import Example
from promptcache.testing.subject import Subject


def tested_examples(subject: Subject) -> Iterator[tuple[str, Example]]:
    """Yield the examples of which something is said, each with its name, or its number among all."""
    for number, example in enumerate(subject.schema.examples, 1):
        if example.valid is not None or example.contains is not None:
            yield example.name or f"number {number}", example


def check_example(subject: Subject, example: Example) -> None:
    """Plan an example that is valid.

    Raises:
        LanguageError: an argument is longer than its slot, or there is nothing to prefill; at its place in the schema.
    """
    if example.valid is not False:
        subject.plan(example_prompt(example))
