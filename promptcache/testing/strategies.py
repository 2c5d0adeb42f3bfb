"""Hypothesis strategies for schemas and for prompts against them: valid by construction, or broken in one named way.

Comes in: which elements of the language to use, or a checked schema. Goes out: documents, checked schemas, selections.
Everything is short enough to be run through a tiny model many times, and shrinks to the fewest modules with the
shortest text. This file knows neither tokens nor models: sizes are counted in bytes of UTF-8, the tokens of the byte
tokenizer.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import TypedDict, Unpack

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from promptcache.language import parse_prompt, resolve_prompt
from promptcache.language.checked import CheckedSchema, Selection
from promptcache.testing.choices import BYTES, arguments
from promptcache.testing.dividing import divide
from promptcache.testing.drafts import Elements, SchemaDraft, schema_drafts
from promptcache.testing.faulty import InvalidPrompt
from promptcache.testing.file_wishes import FileWish, file_wishes
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
from promptcache.testing.written import SchemaFiles
from promptcache.tokenizer import Tokenizer

__all__ = [
    "InvalidPrompt",
    "SchemaFiles",
    "arguments",
    "exact_prompts",
    "exact_schemas",
    "invalid_prompts",
    "pairs",
    "prompt_documents",
    "prompts",
    "schema_documents",
    "schema_files",
    "schemas",
    "selections",
]


class OneFile(TypedDict, total=False):
    """What may be in a schema; everything, unless it is switched off.

    Attributes:
        scaffolds, unions, turns, parameters: These elements.
        uncached: Modules with `cache="false"`.
        rules: `requires`, `excludes` and `after`, and the element.
    """

    scaffolds: bool
    uncached: bool
    unions: bool
    turns: bool
    parameters: bool
    rules: bool


class SeveralFiles(OneFile, total=False):
    """The same, for a schema that may stand in several files.

    Attributes:
        includes: Files that a schema names, by `include` or `src`.
    """

    includes: bool


def schema_documents(**options: Unpack[OneFile]) -> SearchStrategy[str]:
    """Draw the XML text of a valid schema in one file, in which every module can be used."""
    return _written(Elements(includes=False, **options)).map(lambda written: written.xml)


def schema_files(**options: Unpack[SeveralFiles]) -> SearchStrategy[SchemaFiles]:
    """Draw a valid schema as it is written, with the files that it includes, in which every module can be used."""
    return _written(Elements(**options))


def schemas(**options: Unpack[SeveralFiles]) -> SearchStrategy[CheckedSchema]:
    """Draw a checked schema; see `SeveralFiles` for what may be in it."""
    return _checked(Elements(**options))


def exact_schemas() -> SearchStrategy[CheckedSchema]:
    """Draw a schema whose `exact_prompts` are answered exactly.

    Every module is required and cached and sees all that is guaranteed; there are no unions and no scaffolds.
    """
    return _checked(Elements(scaffolds=False, uncached=False, unions=False, own_context=False, complete=True))


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


def invalid_prompts(
    schema: CheckedSchema, codes: Collection[str] | None = None, tokenizer: Tokenizer = BYTES
) -> SearchStrategy[InvalidPrompt]:
    """Draw a prompt for `schema` with one fault in it, and the diagnostic that it must get first.

    Args:
        codes: Only faults that get one of these ("PC408"); None means all.
        tokenizer: Measures slots.
    """
    return broken_prompts(schema, prompt_trees(schema, tokenizer), selections(schema), codes, tokenizer)


@cache
def _written(elements: Elements) -> SearchStrategy[SchemaFiles]:
    rules = rule_wishes() if elements.rules else st.just([])
    scaffolds = scaffold_wishes() if elements.scaffolds else st.just([])
    drafts, files = schema_drafts(elements), file_wishes(elements)
    return st.builds(_write_schema, drafts, rules, scaffolds, example_wishes(), files)


@cache
def _checked(elements: Elements) -> SearchStrategy[CheckedSchema]:
    return _written(elements).map(_check)


def _write_schema(
    draft: SchemaDraft,
    rules: list[RuleWish],
    scaffolds: list[ScaffoldWish],
    examples: list[ExampleWish],
    files: list[FileWish],
) -> SchemaFiles:
    tree = grant(grow(draft), rules, scaffolds)
    add_examples(tree, examples)
    return divide(tree.root, files, indented=draft.indented)


def _check(written: SchemaFiles) -> CheckedSchema:
    note(written.report)
    return written.checked()


def _resolve(tree: PromptTree, schema: CheckedSchema) -> Selection:
    document = tree.document()
    note(f"prompt: {document}")
    return resolve_prompt(parse_prompt(document), schema)
