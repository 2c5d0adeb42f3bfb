"""What goes wrong, where, and what to do about it: spans, diagnostics, and the error tree.

Comes in: facts about a fault from any room. Goes out: typed exceptions and records that a door of the house (command
line, server, notebook) renders. This room knows no XML, no tensors and no terminal.
"""

from promptcache.diagnostics.codes import CODES, Code
from promptcache.diagnostics.errors import (
    ContextLengthExceeded,
    CorruptEncoding,
    LanguageError,
    ModelError,
    ModelNotFound,
    PromptCacheError,
    PromptError,
    SchemaError,
    StoreError,
    TierUnavailable,
    UnknownSchema,
    UnsupportedModel,
)
from promptcache.diagnostics.records import Diagnostic, Severity, Span, in_order
from promptcache.diagnostics.suggesting import did_you_mean, num_slips, suggest

__all__ = [
    "CODES",
    "Code",
    "ContextLengthExceeded",
    "CorruptEncoding",
    "Diagnostic",
    "LanguageError",
    "ModelError",
    "ModelNotFound",
    "PromptCacheError",
    "PromptError",
    "SchemaError",
    "Severity",
    "Span",
    "StoreError",
    "TierUnavailable",
    "UnknownSchema",
    "UnsupportedModel",
    "did_you_mean",
    "in_order",
    "num_slips",
    "suggest",
]
