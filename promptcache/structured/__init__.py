"""Structured output: the formats of answers, and calls of tools in answers.

This room never imports torch or numpy, and knows no model.
"""

from promptcache.structured.call_style import CALL_ID, CallStyle, Elements
from promptcache.structured.calls import CallSplit, parse_calls
from promptcache.structured.forced_calls import CallsOrText, ToolCalls
from promptcache.structured.formats import (
    Choice,
    Grammar,
    JSONSchema,
    OutputFormat,
    OutputType,
    Parsed,
    Regex,
    check_format,
    grammar_text,
    literal,
    read_output,
    refused_format,
)
from promptcache.structured.grammars import CompiledGrammar, GrammarCache
from promptcache.structured.tools import MAX_TOOLS, Tool, ToolCall, read_tools
