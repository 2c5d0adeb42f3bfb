"""Structured output: the formats of answers, and calls of tools in answers.

This room never imports torch or numpy, and knows no model.
"""

from promptcache.structured.call_stream import CallPiece, CallStream
from promptcache.structured.formats import (
    Choice,
    Grammar,
    JSONSchema,
    OutputFormat,
    Regex,
    check_format,
    grammar_text,
    refused_format,
)
from promptcache.structured.grammars import CompiledGrammar, GrammarCache
from promptcache.structured.tools import (
    FUNCTION,
    MAX_TOOLS,
    CallsOrText,
    CallSplit,
    CallStyle,
    Tool,
    ToolCall,
    ToolCalls,
    parse_calls,
    read_tools,
)
from promptcache.structured.types import read_output

__all__ = [
    "FUNCTION",
    "MAX_TOOLS",
    "CallPiece",
    "CallSplit",
    "CallStream",
    "CallStyle",
    "CallsOrText",
    "Choice",
    "CompiledGrammar",
    "Grammar",
    "GrammarCache",
    "JSONSchema",
    "OutputFormat",
    "Regex",
    "Tool",
    "ToolCall",
    "ToolCalls",
    "check_format",
    "grammar_text",
    "parse_calls",
    "read_output",
    "read_tools",
    "refused_format",
]
