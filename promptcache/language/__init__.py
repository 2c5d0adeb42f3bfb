"""The language: parse schemas and prompts from XML, check schemas, and resolve prompts to selections.

```
parse_schema -> check_schema -> CheckedSchema
parse_prompt -> resolve_prompt(…, schema) -> Selection
```

Other rooms import from here only.
"""

from __future__ import annotations

from promptcache.language.check import chat_schema, check_schema
from promptcache.language.checked import (
    CHAT_SCHEMA,
    CheckedCollection,
    CheckedItem,
    CheckedModule,
    CheckedParameter,
    CheckedScaffold,
    CheckedSchema,
    CheckedTurn,
    CheckedUnion,
    FilledSlot,
    FinalText,
    Selection,
    text_of,
    text_within,
    tool_definitions,
    walk_checked,
)
from promptcache.language.format.printer import print_schema
from promptcache.language.grammar import document_grammar
from promptcache.language.limits import MAX_BYTES, MAX_STEPS
from promptcache.language.lint import text_outside_turns
from promptcache.language.load import format_document, format_markup, is_markup, open_prompt, open_schema
from promptcache.language.messages import ChatMessages
from promptcache.language.prompt import Prompt, example_prompt, parse_prompt, split_question
from promptcache.language.prompt_grammar import module_docs, prompt_grammar
from promptcache.language.resolve import declared_members, new_member, resolve_prompt
from promptcache.language.rules.combinations import Count, count_combinations, list_selections, open_solver
from promptcache.language.rules.solver import RuleSolver, limited_solver
from promptcache.language.schema import Schema, module, parse_schema, read_schema, read_schema_file, slot
from promptcache.language.syntax.elements import vocabulary
from promptcache.language.syntax.files import Files, ReadFiles, is_template
from promptcache.language.syntax.member_files import MemberFields, parse_members, write_members
from promptcache.language.syntax.names import absolute, ancestors, as_name, is_element
from promptcache.language.syntax.nodes import (
    AnswerFormat,
    Argument,
    Assert,
    Choose,
    Collection,
    Combination,
    Context,
    Doc,
    Example,
    Exclude,
    Item,
    Member,
    Message,
    Module,
    Parameter,
    ParameterType,
    Placement,
    Reference,
    Require,
    Role,
    RuleList,
    Scaffold,
    Text,
    Turn,
    Union,
    Whitespace,
    join_path,
    place,
    walk,
)
from promptcache.language.syntax.patterns import python_pattern
from promptcache.language.syntax.repair import DEFAULT_REPAIR, REPAIR, Repair, RepairKind
from promptcache.language.syntax.source import (
    HEAD_BYTES,
    NOT_IN_XML,
    read_document,
    root_tag,
    similar_path,
    source_of,
    with_root_attribute,
)
from promptcache.language.syntax.values import output_format, refusal

__all__ = [
    "CHAT_SCHEMA",
    "DEFAULT_REPAIR",
    "HEAD_BYTES",
    "MAX_BYTES",
    "MAX_STEPS",
    "NOT_IN_XML",
    "REPAIR",
    "AnswerFormat",
    "Argument",
    "Assert",
    "ChatMessages",
    "CheckedCollection",
    "CheckedItem",
    "CheckedModule",
    "CheckedParameter",
    "CheckedScaffold",
    "CheckedSchema",
    "CheckedTurn",
    "CheckedUnion",
    "Choose",
    "Collection",
    "Combination",
    "Context",
    "Count",
    "Doc",
    "Example",
    "Exclude",
    "Files",
    "FilledSlot",
    "FinalText",
    "Item",
    "Member",
    "MemberFields",
    "Message",
    "Module",
    "Parameter",
    "ParameterType",
    "Placement",
    "Prompt",
    "ReadFiles",
    "Reference",
    "Repair",
    "RepairKind",
    "Require",
    "Role",
    "RuleList",
    "RuleSolver",
    "Scaffold",
    "Schema",
    "Selection",
    "Text",
    "Turn",
    "Union",
    "Whitespace",
    "absolute",
    "ancestors",
    "as_name",
    "chat_schema",
    "check_schema",
    "count_combinations",
    "declared_members",
    "document_grammar",
    "example_prompt",
    "format_document",
    "format_markup",
    "is_element",
    "is_markup",
    "is_template",
    "join_path",
    "limited_solver",
    "list_selections",
    "module",
    "module_docs",
    "new_member",
    "open_prompt",
    "open_schema",
    "open_solver",
    "output_format",
    "parse_members",
    "parse_prompt",
    "parse_schema",
    "place",
    "print_schema",
    "prompt_grammar",
    "python_pattern",
    "read_document",
    "read_schema",
    "read_schema_file",
    "refusal",
    "resolve_prompt",
    "root_tag",
    "similar_path",
    "slot",
    "source_of",
    "split_question",
    "text_of",
    "text_outside_turns",
    "text_within",
    "tool_definitions",
    "vocabulary",
    "walk",
    "walk_checked",
    "with_root_attribute",
    "write_members",
]
