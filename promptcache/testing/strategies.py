"""Hypothesis strategies for schemas and for prompts against them: valid by construction, or broken in one named way.

Comes in: which elements of the language to use, or a checked schema. Goes out: documents, checked schemas, selections.
Everything is short enough to be run through a tiny model many times, and shrinks to the fewest modules with the
shortest text. This file knows neither tokens nor models: sizes are counted in bytes of UTF-8, the tokens of the byte
tokenizer.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from promptcache.language import check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.language.checked import CheckedSchema, Selection
from promptcache.testing.choices import arguments
from promptcache.testing.drafts import Elements, SchemaDraft, schema_drafts
from promptcache.testing.faulty import InvalidPrompt
from promptcache.testing.markup import indent, to_text
from promptcache.testing.mutations import broken_prompts
from promptcache.testing.prompt_xml import PromptTree
from promptcache.testing.prompting import filler_prompt_trees, prompt_tree_pairs, prompt_trees
from promptcache.testing.rules_xml import (
    ExampleWish,
    RuleWish,
    ScaffoldWish,
    add_examples,
    example_wishes,
    grant,
    rule_wishes,
    scaffold_wishes,
)
from promptcache.testing.schema_xml import grow
from promptcache.testing.selecting import selections

__all__ = [
    "InvalidPrompt",
    "arguments",
    "exact_prompts",
    "exact_schemas",
    "invalid_prompts",
    "pairs",
    "prompt_documents",
    "prompts",
    "schema_documents",
    "schemas",
    "selections",
]


@st.composite
def schema_documents(
    draw: DrawFn,
    *,
    scaffolds: bool = True,
    uncached: bool = True,
    unions: bool = True,
    turns: bool = True,
    parameters: bool = True,
    rules: bool = True,
) -> str:
    """Draw the XML text of a valid schema in which every module can be used.

    Args:
        scaffolds: Whether there may be scaffolds; so for the others.
        uncached: Modules with `cache="false"`.
        rules: `requires`, `excludes` and `after`.
    """
    elements = Elements(
        scaffolds=scaffolds, uncached=uncached, unions=unions, turns=turns, parameters=parameters, rules=rules
    )
    return draw(_documents(elements))


@st.composite
def schemas(
    draw: DrawFn,
    *,
    scaffolds: bool = True,
    uncached: bool = True,
    unions: bool = True,
    turns: bool = True,
    parameters: bool = True,
    rules: bool = True,
) -> CheckedSchema:
    """Draw a checked schema; see `schema_documents` for what may be in it."""
    elements = Elements(
        scaffolds=scaffolds, uncached=uncached, unions=unions, turns=turns, parameters=parameters, rules=rules
    )
    return _check(draw(_documents(elements)))


@st.composite
def exact_schemas(draw: DrawFn) -> CheckedSchema:
    """Draw a schema whose `exact_prompts` are answered exactly.

    Every module is required and cached and sees all that is guaranteed; there are no unions and no scaffolds.
    """
    elements = Elements(scaffolds=False, uncached=False, unions=False, own_context=False, complete=True)
    return _check(draw(_documents(elements)))


def prompt_documents(schema: CheckedSchema) -> SearchStrategy[str]:
    """Draw the XML text of a valid prompt for `schema`, written in any form the language has."""
    return prompt_trees(schema).map(PromptTree.document)


def prompts(schema: CheckedSchema) -> SearchStrategy[Selection]:
    """Draw a valid prompt for `schema`, parsed and resolved."""
    return prompt_trees(schema).map(lambda tree: _resolve(tree, schema))


def exact_prompts(schema: CheckedSchema) -> SearchStrategy[Selection]:
    """Draw a prompt for one of `exact_schemas` that leaves every slot at its filler."""
    return filler_prompt_trees(schema).map(lambda tree: _resolve(tree, schema))


def pairs(schema: CheckedSchema) -> SearchStrategy[tuple[Selection, Selection]]:
    """Draw two prompts for `schema` that use different modules, unless it has one valid selection only.

    The slots of modules that both use have the same arguments, and both end in the same messages.
    """
    return prompt_tree_pairs(schema).map(lambda trees: (_resolve(trees[0], schema), _resolve(trees[1], schema)))


def invalid_prompts(schema: CheckedSchema, codes: Collection[str] | None = None) -> SearchStrategy[InvalidPrompt]:
    """Draw a prompt for `schema` with one fault in it, and the diagnostic that it must get first.

    Args:
        codes: Only faults that get one of these ("PC408"); None means all.
    """
    return broken_prompts(schema, prompt_trees(schema), selections(schema), codes)


@cache
def _documents(elements: Elements) -> SearchStrategy[str]:
    rules = rule_wishes() if elements.rules else st.just([])
    scaffolds = scaffold_wishes() if elements.scaffolds else st.just([])
    return st.builds(_write_schema, schema_drafts(elements), rules, scaffolds, example_wishes())


def _write_schema(
    draft: SchemaDraft, rules: list[RuleWish], scaffolds: list[ScaffoldWish], examples: list[ExampleWish]
) -> str:
    tree = grant(grow(draft), rules, scaffolds)
    add_examples(tree, examples)
    if draft.indented:
        indent(tree.root)
    return to_text(tree.root)


def _check(document: str) -> CheckedSchema:
    note(f"schema: {document}")
    return check_schema(parse_schema(document))


def _resolve(tree: PromptTree, schema: CheckedSchema) -> Selection:
    document = tree.document()
    note(f"prompt: {document}")
    return resolve_prompt(parse_prompt(document), schema)
