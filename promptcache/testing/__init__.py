"""Property testing for schemas and prompts: strategies, laws, coverings, faults and stand-ins that need no files.

    from hypothesis import given
    from promptcache.testing import prompts

    @given(prompts("schemas/support.xml"))
    def test_answer_never_exceeds_the_window(case):
        assert case.plan.stop <= 2048

What is named here is for users: it takes schemas in any form and gives cases. `promptcache.testing.strategies`, on
which it rests, takes checked schemas and gives selections; its names are the same, one floor below.

Names are loaded when they are first used. Strategies and laws need `promptcache[testing]`; `byte_tokenizer` and
`tiny_model` also serve where Hypothesis is not installed, and nothing but `tiny_model`, `service`, `engine_laws`,
`histories` and `faults` loads torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from promptcache.testing.breaking import BrokenSchema, broken_schemas
    from promptcache.testing.byte_tokenizer import ByteTokenizer
    from promptcache.testing.cases import arguments, invalid_prompts, pairs, prompts, selections
    from promptcache.testing.cover import all_prompts, covering
    from promptcache.testing.faulty import InvalidPrompt
    from promptcache.testing.strategies import schema_files, schemas
    from promptcache.testing.subject import PromptCase, Subject
    from promptcache.testing.written import SchemaFiles

_HOMES = {
    "BrokenSchema": "promptcache.testing.breaking",
    "ByteTokenizer": "promptcache.testing.byte_tokenizer",
    "InvalidPrompt": "promptcache.testing.faulty",
    "PromptCase": "promptcache.testing.subject",
    "SchemaFiles": "promptcache.testing.written",
    "Subject": "promptcache.testing.subject",
    "all_prompts": "promptcache.testing.cover",
    "arguments": "promptcache.testing.cases",
    "broken_schemas": "promptcache.testing.breaking",
    "covering": "promptcache.testing.cover",
    "invalid_prompts": "promptcache.testing.cases",
    "pairs": "promptcache.testing.cases",
    "prompts": "promptcache.testing.cases",
    "schema_files": "promptcache.testing.strategies",
    "schemas": "promptcache.testing.strategies",
    "selections": "promptcache.testing.cases",
}

__all__ = [
    "BrokenSchema",
    "ByteTokenizer",
    "InvalidPrompt",
    "PromptCase",
    "SchemaFiles",
    "Subject",
    "all_prompts",
    "arguments",
    "broken_schemas",
    "covering",
    "invalid_prompts",
    "pairs",
    "prompts",
    "schema_files",
    "schemas",
    "selections",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'promptcache.testing' has no attribute '{name}'")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "hypothesis":
            raise
        mend = f"promptcache.testing.{name} needs Hypothesis: pip install 'promptcache[testing]'"
        raise ModuleNotFoundError(mend, name=error.name) from error


def __dir__() -> list[str]:
    return list(__all__)
