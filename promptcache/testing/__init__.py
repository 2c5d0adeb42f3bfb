"""Property testing for schemas and prompts: Hypothesis strategies, and a tokenizer that needs no files.

Install with `promptcache[testing]`; nothing else in the package imports Hypothesis.
"""

from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.strategies import (
    InvalidPrompt,
    arguments,
    exact_prompts,
    exact_schemas,
    invalid_prompts,
    pairs,
    prompt_documents,
    prompts,
    schema_documents,
    schemas,
    selections,
)

__all__ = [
    "ByteTokenizer",
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
