"""Strategies for users: prompts of a schema as cases, with everything that is known of them before a model runs.

Comes in: a schema as a path, XML text or object. Goes out: strategies for `PromptCase`, and for the parts of one. What
`promptcache.testing.strategies` draws is underneath: checked schemas in, selections out.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from promptcache.language.syntax.names import ancestors
from promptcache.testing import choices, strategies
from promptcache.testing.choices import MESSAGES, SOME_MESSAGES, Key, Said, Slots, draw_arguments
from promptcache.testing.faulty import InvalidPrompt
from promptcache.testing.prompt_xml import Choice, PromptTree, write_prompt
from promptcache.testing.prompting import prompt_tree_pairs
from promptcache.testing.selecting import selections_with
from promptcache.testing.subject import PromptCase, SchemaSource, Subject, default_tokenizer, read_schema
from promptcache.testing.token_texts import fitting_texts
from promptcache.testing.walk import has_tokens
from promptcache.tokenizer import Tokenizer

Arguments: TypeAlias = Mapping[str, str | SearchStrategy[str] | None]
"""By "module/parameter" (the root's own: "parameter"): a text, a strategy for one, or None for no argument."""


def prompts(
    schema: SchemaSource,
    select: Collection[str] | SearchStrategy[frozenset[str]] = (),
    args: Arguments | None = None,
    text: str | SearchStrategy[str] | None = None,
    tokenizer: Tokenizer | None = None,
) -> SearchStrategy[PromptCase]:
    """Draw valid prompts of a schema; the smallest selection with the shortest text is the simplest.

    Args:
        schema: A path, XML text, or a schema.
        select: Module paths that every prompt uses, or a strategy for whole valid selections.
        args: What certain slots get; all others are drawn.
        text: Bare text that follows the modules; None draws nothing, bare text or turns.
        tokenizer: Measures slots; None takes the demo model's.
    """
    return subject_prompts(Subject(schema, tokenizer), select, args, text)


def subject_prompts(
    subject: Subject,
    select: Collection[str] | SearchStrategy[frozenset[str]] = (),
    args: Arguments | None = None,
    text: str | SearchStrategy[str] | None = None,
) -> SearchStrategy[PromptCase]:
    """Draw valid prompts of a schema that is under test already; see `prompts`."""
    chosen = select if isinstance(select, SearchStrategy) else selections_with(subject.schema, frozenset(select))
    slots = {**_slots(subject), **_given(subject, args or {})}
    subject.lay_out_now()
    return _cases(_Source(subject=subject, selections=chosen, slots=slots, messages=_messages(text)))


def selections(schema: SchemaSource) -> SearchStrategy[frozenset[str]]:
    """Draw the modules of a valid prompt, as paths."""
    return strategies.selections(read_schema(schema))


def arguments(
    schema: SchemaSource, modules: Collection[str], tokenizer: Tokenizer | None = None
) -> SearchStrategy[dict[Key, str]]:
    """Draw arguments for the slots of `modules` and of the root, as long as their slots at most.

    Returns:
        Texts by module path and parameter name.
    """
    return _arguments(_slots(Subject(schema, tokenizer)), frozenset(modules))


def pairs(schema: SchemaSource, tokenizer: Tokenizer | None = None) -> SearchStrategy[tuple[PromptCase, PromptCase]]:
    """Draw two prompts that differ in one module, or in as few as the rules allow, and are otherwise the same."""
    subject = Subject(schema, tokenizer)
    subject.lay_out_now()
    return prompt_tree_pairs(subject.schema, subject.tokenizer).map(
        lambda trees: (_case(trees[0], subject), _case(trees[1], subject))
    )


def named_modules(schema: SchemaSource) -> SearchStrategy[frozenset[str]]:
    """Draw modules for a prompt to name, with their ancestors, whether or not the rules allow it.

    Mostly they are a valid selection but for one module, or two of them joined, so that one rule alone forbids them.
    """
    paths = list(read_schema(schema).modules)
    if not paths:
        return st.just(frozenset())
    few = st.sets(st.sampled_from(paths), max_size=6)
    near = st.builds(lambda modules, other: modules ^ {other}, selections(schema), st.sampled_from(paths))
    joined = st.builds(operator.or_, selections(schema), selections(schema))
    return st.one_of(few, near, joined).map(
        lambda named: frozenset(outer for path in named for outer in (path, *ancestors(path)))
    )


def invalid_prompts(
    schema: SchemaSource, codes: Collection[str] | None = None, tokenizer: Tokenizer | None = None
) -> SearchStrategy[InvalidPrompt]:
    """Draw a prompt with one fault in it, and the code and place that its first diagnostic must have.

    Args:
        schema: A path, XML text, or a schema.
        codes: The faults wanted ("PC408"); None wants all.
        tokenizer: Measures slots; None takes the demo model's.
    """
    return strategies.invalid_prompts(read_schema(schema), codes, tokenizer or default_tokenizer())


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Source:
    """What prompts of one schema are drawn from; its short repr keeps Hypothesis' messages readable."""

    subject: Subject
    selections: SearchStrategy[frozenset[str]]
    slots: Slots
    messages: SearchStrategy[Sequence[Said]] | None

    def __repr__(self) -> str:
        return repr(self.subject)


class _Report:
    """Shows a case only when somebody looks: making the report takes time."""

    def __init__(self, case: PromptCase) -> None:
        self._case = case

    def __repr__(self) -> str:
        return self._case.report


@st.composite
def _cases(draw: DrawFn, source: _Source) -> PromptCase:
    schema = source.subject.schema
    modules = draw(source.selections)
    filled = draw_arguments(draw, source.slots, modules)
    said = source.messages
    if said is None:
        said = MESSAGES if has_tokens(schema.children, modules, filled) else SOME_MESSAGES
    tree = write_prompt(draw, schema, Choice(modules=modules, arguments=filled, messages=draw(said)))
    return _case(tree, source.subject)


@st.composite
def _arguments(draw: DrawFn, slots: Slots, modules: frozenset[str]) -> dict[Key, str]:
    return draw_arguments(draw, slots, modules)


def _case(tree: PromptTree, subject: Subject) -> PromptCase:
    case = subject.case(tree.document())
    note(_Report(case))
    return case


def _slots(subject: Subject) -> dict[Key, SearchStrategy[str] | SearchStrategy[str | None]]:
    """Return a strategy for each slot, measured in the subject's tokens."""
    found: dict[Key, SearchStrategy[str] | SearchStrategy[str | None]] = {}
    for owner, parameters in subject.schema.parameters.items():
        for name, parameter in parameters.items():
            fitting = fitting_texts(parameter, choices.argument_texts(parameter, subject.tokenizer), subject.tokenizer)
            found[owner, name] = choices.given_or_left_out(parameter, fitting)
    return found


def _given(subject: Subject, args: Arguments) -> dict[Key, SearchStrategy[str] | SearchStrategy[str | None]]:
    """Return what a caller wants in certain slots.

    Raises:
        ValueError: there is no such parameter.
    """
    found: dict[Key, SearchStrategy[str] | SearchStrategy[str | None]] = {}
    for path, wanted in args.items():
        owner, _, name = path.rpartition("/")
        if name not in subject.schema.parameters.get(owner, {}):
            raise ValueError(f"{subject!r} has no parameter {path!r}")
        found[owner, name] = wanted if isinstance(wanted, SearchStrategy) else st.just(wanted)
    return found


def _messages(text: str | SearchStrategy[str] | None) -> SearchStrategy[Sequence[Said]] | None:
    if text is None:
        return None
    drawn = text if isinstance(text, SearchStrategy) else st.just(text)
    return drawn.map(lambda one: (Said(text=one, exact=True),))
