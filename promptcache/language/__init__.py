"""The language: parse schemas and prompts from XML, check schemas, and resolve prompts to selections.

```
parse_schema -> check_schema -> CheckedSchema
parse_prompt -> resolve_prompt(…, schema) -> Selection
```

Other rooms import from here only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    walk_checked,
)
from promptcache.language.examples import example_prompt, text_of
from promptcache.language.format.formatter import format_document
from promptcache.language.grammar import document_grammar
from promptcache.language.limits import MAX_BYTES, MAX_STEPS
from promptcache.language.load import are_messages, is_markup, open_prompt, open_schema
from promptcache.language.messages import ChatMessage, ChatMessages, read_messages
from promptcache.language.outside_turns import text_outside_turns
from promptcache.language.print_schema import print_schema
from promptcache.language.prompt import Prompt, parse_prompt, split_question
from promptcache.language.prompt_grammar import module_docs, prompt_grammar
from promptcache.language.resolve import declared_members, new_member, resolve_prompt
from promptcache.language.rules.combinations import (
    Count,
    count_combinations,
    list_selections,
    open_solver,
)
from promptcache.language.rules.rules import RuleKind
from promptcache.language.rules.solver import RuleSolver, limited_solver
from promptcache.language.schema import Schema, module, parse_schema, read_schema, read_schema_file, slot
from promptcache.language.syntax.answers import output_format
from promptcache.language.syntax.elements import vocabulary
from promptcache.language.syntax.files import Files, ReadFiles, is_template
from promptcache.language.syntax.member_files import parse_members, write_members
from promptcache.language.syntax.names import (
    RESERVED_MODULES,
    RESERVED_OUTSIDE_MODULES,
    RESERVED_PARAMETERS,
    absolute,
    ancestors,
    as_name,
    is_element,
    is_name,
)
from promptcache.language.syntax.nodes import (
    IN_PYTHON,
    AnswerFormat,
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
    Module,
    Parameter,
    ParameterType,
    Placement,
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
from promptcache.language.syntax.prompt_nodes import Argument, Message, Reference
from promptcache.language.syntax.repair import DEFAULT_REPAIR, REPAIR, Repair, RepairKind
from promptcache.language.syntax.source import (
    HEAD_BYTES,
    NOT_IN_XML,
    decode,
    read_document,
    root_tag,
    source_of,
    with_root_attribute,
)
from promptcache.language.syntax.values import refusal
from promptcache.language.syntax.whitespace import finish
from promptcache.language.tools import tool_definitions
from promptcache.lazy import lazy_names

if TYPE_CHECKING:
    from promptcache.language.syntax.templates import render_template

_HOMES = {"render_template": "promptcache.language.syntax.templates"}
"""Names whose modules are imported at first use. Jinja2 alone takes as long to import as the rest of the language."""

__all__ = [
    "CHAT_SCHEMA",
    "DEFAULT_REPAIR",
    "HEAD_BYTES",
    "IN_PYTHON",
    "MAX_BYTES",
    "MAX_STEPS",
    "NOT_IN_XML",
    "REPAIR",
    "RESERVED_MODULES",
    "RESERVED_OUTSIDE_MODULES",
    "RESERVED_PARAMETERS",
    "AnswerFormat",
    "Argument",
    "Assert",
    "ChatMessage",
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
    "RuleKind",
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
    "are_messages",
    "as_name",
    "chat_schema",
    "check_schema",
    "count_combinations",
    "declared_members",
    "decode",
    "document_grammar",
    "example_prompt",
    "finish",
    "format_document",
    "is_element",
    "is_markup",
    "is_name",
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
    "read_messages",
    "read_schema",
    "read_schema_file",
    "refusal",
    "render_template",
    "resolve_prompt",
    "root_tag",
    "slot",
    "source_of",
    "split_question",
    "text_of",
    "text_outside_turns",
    "tool_definitions",
    "vocabulary",
    "walk",
    "walk_checked",
    "with_root_attribute",
    "write_members",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
