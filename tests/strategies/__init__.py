"""Hypothesis strategies for tests of this library: random schemas, their prompts, and documents with one fault.

Schemas use every element of the language, and are small enough to run through a tiny model many times. Slots are
measured with the byte tokenizer, and everything shrinks to the fewest modules with the shortest text.
"""

from collections.abc import Collection
from functools import cache

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from promptcache.language import Parameter, parse_prompt, resolve_prompt
from promptcache.language.checked import CheckedSchema, Selection
from promptcache.testing import ByteTokenizer, selections
from promptcache.testing.cases import prompt_tree_pairs, prompt_trees
from promptcache.testing.prompt_xml import PromptTree
from promptcache.testing.texts import BYTES, Slots, slots
from tests.strategies import schema_faults
from tests.strategies.drafts import Elements, SchemaDraft, schema_drafts
from tests.strategies.prompt_faults import InvalidPrompt, invalid_prompts
from tests.strategies.rules_xml import (
    ExampleWish,
    RuleWish,
    ScaffoldWish,
    add_examples,
    example_wishes,
    grant,
    rule_wishes,
    scaffold_wishes,
)
from tests.strategies.schema_faults import BrokenSchema
from tests.strategies.schema_xml import grow
from tests.strategies.split_files import FileWish, SchemaFiles, divide, file_wishes

TOKENIZERS = st.sampled_from([ByteTokenizer(), ByteTokenizer(bos=False)])
"""The byte tokenizer with and without BOS, for every law over random schemas."""


def schema_documents() -> SearchStrategy[str]:
    """Draw the XML text of a valid schema in one file, in which every module can be used."""
    return _written(Elements(includes=False)).map(lambda written: written.xml)


def schema_files() -> SearchStrategy[SchemaFiles]:
    """Draw a valid schema with the files that it includes, in which every module can be used."""
    return _written(Elements())


def schemas(*, includes: bool = True) -> SearchStrategy[CheckedSchema]:
    """Draw a checked schema; `includes` are files that it names by `include` or `src`."""
    return _checked(Elements(includes=includes))


def exact_schemas() -> SearchStrategy[CheckedSchema]:
    """Draw a schema whose `exact_prompts` are exact: all modules are required, cached and see all that is guaranteed."""
    return _checked(Elements(complete=True))


def prompt_documents(schema: CheckedSchema) -> SearchStrategy[str]:
    """Draw the XML text of a valid prompt, in any form of the language."""
    return _trees(schema, slots(schema, BYTES)).map(PromptTree.document)


def prompts(schema: CheckedSchema) -> SearchStrategy[Selection]:
    """Draw a valid prompt, parsed and resolved; `promptcache.testing.prompts` also plans it."""
    return _trees(schema, slots(schema, BYTES)).map(lambda tree: _resolve(tree, schema))


def exact_prompts(schema: CheckedSchema) -> SearchStrategy[Selection]:
    """Draw a prompt for one of `exact_schemas` that leaves every slot at its filler."""
    fillers = {
        (owner, name): st.just(_filler_of(parameter))
        for owner, parameters in schema.parameters.items()
        for name, parameter in parameters.items()
        if parameter.required or _filler_of(parameter) != (parameter.default or "")
    }
    return _trees(schema, fillers).map(lambda tree: _resolve(tree, schema))


def pairs(schema: CheckedSchema) -> SearchStrategy[tuple[Selection, Selection]]:
    """Draw two prompts with different modules, if there are any, and equal arguments and messages."""
    trees = prompt_tree_pairs(schema, slots(schema, BYTES))
    return trees.map(lambda pair: (_resolve(pair[0], schema), _resolve(pair[1], schema)))


def broken_schemas(codes: Collection[str] | None = None) -> SearchStrategy[BrokenSchema]:
    """Draw a schema with one fault, of one of `codes`, and the diagnostic that it must get first."""
    return schema_faults.broken_schemas(schema_files(), codes)


def _filler_of(parameter: Parameter) -> str:
    """Return the text that a slot holds when its module is encoded."""
    return (parameter.default or "") if parameter.placeholder is None else parameter.placeholder


def _trees(schema: CheckedSchema, known: Slots) -> SearchStrategy[PromptTree]:
    return prompt_trees(schema, selections(schema), known)


@cache
def _written(elements: Elements) -> SearchStrategy[SchemaFiles]:
    scaffolds = st.just([]) if elements.complete else scaffold_wishes()
    drafts, files = schema_drafts(elements), file_wishes(elements)
    return st.builds(_write_schema, drafts, rule_wishes(), scaffolds, example_wishes(), files)


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
