"""Valid prompts as XML trees: modules, arguments and messages chosen, then written down.

Comes in: a checked schema. Goes out: strategies for trees. Knows which prompts would be empty, and adds text to those.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from promptcache.language.checked import CheckedSchema
from promptcache.testing.choices import (
    BYTES,
    MESSAGES,
    SOME_MESSAGES,
    Key,
    Slots,
    draw_arguments,
    filler_arguments,
    slots,
)
from promptcache.testing.prompt_xml import Choice, PromptTree, write_prompt
from promptcache.testing.selecting import distinct_selections, selections
from promptcache.testing.walk import has_tokens
from promptcache.tokenizer import Tokenizer


def prompt_trees(schema: CheckedSchema, tokenizer: Tokenizer = BYTES) -> SearchStrategy[PromptTree]:
    """Draw a valid prompt; arguments are measured in tokens."""
    return _prompt_trees(_Source(schema=schema, selections=selections(schema), slots=slots(schema, tokenizer)))


def filler_prompt_trees(schema: CheckedSchema) -> SearchStrategy[PromptTree]:
    """Draw a valid prompt that leaves every slot at its filler."""
    fillers = {key: st.just(text) for key, text in filler_arguments(schema).items()}
    return _prompt_trees(_Source(schema=schema, selections=selections(schema), slots=fillers))


def prompt_tree_pairs(
    schema: CheckedSchema, tokenizer: Tokenizer = BYTES
) -> SearchStrategy[tuple[PromptTree, PromptTree]]:
    """Draw two valid prompts with different modules where there are any; what both have has the same arguments."""
    known = slots(schema, tokenizer)
    return _prompt_tree_pairs(_PairSource(schema=schema, selections=distinct_selections(schema), slots=known))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Source:
    """What prompts of one schema are drawn from; its short repr keeps Hypothesis' messages readable."""

    schema: CheckedSchema
    selections: SearchStrategy[frozenset[str]]
    slots: Slots

    def __repr__(self) -> str:
        return f"schema {self.schema.name!r}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _PairSource:
    """What pairs of prompts of one schema are drawn from."""

    schema: CheckedSchema
    selections: SearchStrategy[tuple[frozenset[str], frozenset[str]]]
    slots: Slots

    def __repr__(self) -> str:
        return f"schema {self.schema.name!r}"


@st.composite
def _prompt_trees(draw: DrawFn, source: _Source) -> PromptTree:
    schema = source.schema
    modules = draw(source.selections)
    filled = draw_arguments(draw, source.slots, modules)
    said = draw(MESSAGES if has_tokens(schema.children, modules, filled) else SOME_MESSAGES)
    return write_prompt(draw, schema, Choice(modules=modules, arguments=filled, messages=said))


@st.composite
def _prompt_tree_pairs(draw: DrawFn, source: _PairSource) -> tuple[PromptTree, PromptTree]:
    schema = source.schema
    selected = draw(source.selections)
    filled = draw_arguments(draw, source.slots, selected[0] | selected[1])
    choices = [(modules, _restricted(filled, modules)) for modules in selected]
    spoken = all(has_tokens(schema.children, modules, arguments) for modules, arguments in choices)
    said = draw(MESSAGES if spoken else SOME_MESSAGES)
    first, second = (
        write_prompt(draw, schema, Choice(modules=modules, arguments=arguments, messages=said))
        for modules, arguments in choices
    )
    return first, second


def _restricted(filled: dict[Key, str], modules: frozenset[str]) -> dict[Key, str]:
    """Return the arguments for slots of `modules` and of the root."""
    return {(owner, name): text for (owner, name), text in filled.items() if not owner or owner in modules}
