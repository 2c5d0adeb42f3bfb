"""What goes wrong, where, and what to do about it: spans, diagnostics, and the error tree.

Comes in: facts about a fault from any room. Goes out: typed exceptions and records that a door of the house (command
line, server, notebook) renders. This room knows no XML, no tensors and no terminal.
"""

from promptcache.diagnostics.codes import CODES, Code
from promptcache.diagnostics.errors import (
    ContextLengthExceeded,
    CorruptEncoding,
    InvalidGeneration,
    InvalidValue,
    LanguageError,
    ModelError,
    ModelNotFound,
    PromptCacheError,
    PromptError,
    SchemaError,
    StoreError,
    TierUnavailable,
    UnknownSchema,
    Unpicklable,
    UnsupportedModel,
)
from promptcache.diagnostics.excerpts import Part, excerpt, excerpt_pieces, printable
from promptcache.diagnostics.faults import MAX_FAULTS, Faults
from promptcache.diagnostics.kinds import (
    BYTES,
    FLAG,
    FUNCTION,
    PATH,
    TEXT,
    TEXTS,
    Kind,
    instance,
    is_text,
    number,
    one_of,
    tuple_of,
    whole,
)
from promptcache.diagnostics.records import Diagnostic, Severity, Span, in_order
from promptcache.diagnostics.short import Short, shown
from promptcache.diagnostics.suggesting import did_you_mean, num_slips, suggest

__all__ = [
    "BYTES",
    "CODES",
    "FLAG",
    "FUNCTION",
    "MAX_FAULTS",
    "PATH",
    "TEXT",
    "TEXTS",
    "Code",
    "ContextLengthExceeded",
    "CorruptEncoding",
    "Diagnostic",
    "Faults",
    "InvalidGeneration",
    "InvalidValue",
    "Kind",
    "LanguageError",
    "ModelError",
    "ModelNotFound",
    "Part",
    "PromptCacheError",
    "PromptError",
    "SchemaError",
    "Severity",
    "Short",
    "Span",
    "StoreError",
    "TierUnavailable",
    "UnknownSchema",
    "Unpicklable",
    "UnsupportedModel",
    "did_you_mean",
    "excerpt",
    "excerpt_pieces",
    "in_order",
    "instance",
    "is_text",
    "num_slips",
    "number",
    "one_of",
    "printable",
    "shown",
    "suggest",
    "tuple_of",
    "whole",
]
