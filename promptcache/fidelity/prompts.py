"""Prompts of a schema to measure with: its valid examples, and random valid combinations of its modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import cycle
from typing import NamedTuple

from promptcache.diagnostics import PromptError
from promptcache.language import CheckedSchema, Prompt, Role, Selection, example_prompt, resolve_prompt
from promptcache.tokenizer import Tokenizer

DEFAULT_QUESTION = "What should I know about this?"
"""The text of random prompts, if no example of the schema ends in a text."""


class MeasuredPrompt(NamedTuple):
    """A prompt that is measured.

    Attributes:
        name: Name of the example, or its number among all, or "random 1".
        xml: The prompt.
        selection: The same, checked.
    """

    name: str
    xml: str
    selection: Selection


def example_prompts(schema: CheckedSchema) -> Iterator[MeasuredPrompt]:
    """Yield the examples of a schema that are valid prompts."""
    for number, example in enumerate(schema.examples, 1):
        if example.valid is not False:
            with suppress(PromptError):  # an example without claims may be invalid
                prompt = example_prompt(example)
                name = example.name or f"example {number}"
                yield MeasuredPrompt(name, prompt.to_xml(), resolve_prompt(prompt, schema))


def random_prompts(schema: CheckedSchema, tokenizer: Tokenizer, count: int, seed: int) -> Iterator[MeasuredPrompt]:
    """Yield at most `count` random combinations of modules and members, with fitting texts for required parameters.

    Each ends in a text of the examples, in turn, or in `DEFAULT_QUESTION`. A combination without a text that fits
    into a slot is left out. Needs Hypothesis, like the rest of `promptcache.testing`.

    Raises:
        InvalidValue: All prompts need members that the schema does not declare.
    """
    from promptcache.testing.cover import plain_case
    from promptcache.testing.prompt_xml import check_members
    from promptcache.testing.selection import sample_combinations
    from promptcache.testing.subject import Subject

    check_members(schema, schema.guaranteed[""])
    subject = Subject(schema, tokenizer)
    texts = [_text(example_prompt(each)) for each in schema.examples if each.valid]
    questions = cycle([text for text in texts if text] or [DEFAULT_QUESTION])
    drawn = zip(sample_combinations(schema, count, seed), questions, strict=False)
    for number, ((modules, members), text) in enumerate(drawn, 1):
        with suppress(PromptError, ValueError):
            case = plain_case(subject, modules, text, dict(members))
            yield MeasuredPrompt(f"random {number}", case.xml, case.selection)


def _text(prompt: Prompt) -> str:
    """Return the bare text of a prompt, or that of its last user turn."""
    return next((each.text for each in reversed(prompt.messages) if each.role in (None, Role.USER)), "")
