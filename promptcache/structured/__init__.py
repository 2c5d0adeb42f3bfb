"""Structured output: the format of an answer, and the token masks that give an answer this format.

This room never imports torch, and knows no model.
"""

from promptcache.structured.formats import Choice, Grammar, JSONSchema, OutputFormat, Regex, check_format
from promptcache.structured.masks import Mask, TokenGrammars, TokenMatcher
from promptcache.structured.types import read_output

__all__ = [
    "Choice",
    "Grammar",
    "JSONSchema",
    "Mask",
    "OutputFormat",
    "Regex",
    "TokenGrammars",
    "TokenMatcher",
    "check_format",
    "read_output",
]
