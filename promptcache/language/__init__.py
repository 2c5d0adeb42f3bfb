"""The language: from XML text to a checked schema, and to what a prompt selects from it.

```
parse_schema -> check_schema -> CheckedSchema
parse_prompt -> resolve_prompt(…, schema) -> Selection
```
"""

from promptcache.language.check import check_schema
from promptcache.language.checked import CheckedSchema, Selection
from promptcache.language.examples import example_prompt, text_of
from promptcache.language.print_schema import print_schema
from promptcache.language.prompt import Prompt
from promptcache.language.prompt_for import SlotArguments, prompt_for
from promptcache.language.read_prompt import load_prompt, parse_prompt
from promptcache.language.resolve import resolve_prompt
from promptcache.language.rules.combinations import Combinations, Extreme
from promptcache.language.rules.count import Count, count_combinations, list_selections, open_solver
from promptcache.language.rules.solver import RuleSolver
from promptcache.language.schema import (
    Assert,
    Choose,
    Context,
    Example,
    Exclude,
    Module,
    ParameterType,
    Require,
    Role,
    Schema,
    Whitespace,
    module,
    parse_schema,
    slot,
)

__all__ = [
    "Assert",
    "CheckedSchema",
    "Choose",
    "Combinations",
    "Context",
    "Count",
    "Example",
    "Exclude",
    "Extreme",
    "Module",
    "ParameterType",
    "Prompt",
    "Require",
    "Role",
    "RuleSolver",
    "Schema",
    "Selection",
    "SlotArguments",
    "Whitespace",
    "check_schema",
    "count_combinations",
    "example_prompt",
    "list_selections",
    "load_prompt",
    "module",
    "open_solver",
    "parse_prompt",
    "parse_schema",
    "print_schema",
    "prompt_for",
    "resolve_prompt",
    "slot",
    "text_of",
]
