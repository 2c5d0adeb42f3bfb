"""Prompt Cache: modular prompts whose KV is computed once and linked without copying.

    from promptcache import Engine

    engine = Engine.from_pretrained("demo")
    engine.add_schema("schemas/travel.xml")
    print(engine.generate('<prompt schema="travel">…</prompt>').text)

Names are imported on first use, so that checking documents does not import torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from promptcache.lazy import lazy_names

if TYPE_CHECKING:
    from promptcache.answers import TokenLogprobs as TokenLogprobs
    from promptcache.decode import AsyncStream as AsyncStream
    from promptcache.decode import Completion as Completion
    from promptcache.decode import FinishReason as FinishReason
    from promptcache.decode import Score as Score
    from promptcache.decode import Service as Service
    from promptcache.decode import ServiceObserver as ServiceObserver
    from promptcache.decode import Stream as Stream
    from promptcache.decode import Ticket as Ticket
    from promptcache.decode import Timing as Timing
    from promptcache.decode import Usage as Usage
    from promptcache.diagnostics import Cancelled as Cancelled
    from promptcache.diagnostics import ContextLengthExceeded as ContextLengthExceeded
    from promptcache.diagnostics import CorruptEncoding as CorruptEncoding
    from promptcache.diagnostics import Diagnostic as Diagnostic
    from promptcache.diagnostics import EngineClosed as EngineClosed
    from promptcache.diagnostics import InvalidGeneration as InvalidGeneration
    from promptcache.diagnostics import InvalidOutput as InvalidOutput
    from promptcache.diagnostics import InvalidValue as InvalidValue
    from promptcache.diagnostics import LanguageError as LanguageError
    from promptcache.diagnostics import ModelChanged as ModelChanged
    from promptcache.diagnostics import ModelError as ModelError
    from promptcache.diagnostics import ModelNotFound as ModelNotFound
    from promptcache.diagnostics import NotFinite as NotFinite
    from promptcache.diagnostics import PromptCacheError as PromptCacheError
    from promptcache.diagnostics import PromptError as PromptError
    from promptcache.diagnostics import QueueFull as QueueFull
    from promptcache.diagnostics import QueueTimeout as QueueTimeout
    from promptcache.diagnostics import SchemaError as SchemaError
    from promptcache.diagnostics import ServiceClosed as ServiceClosed
    from promptcache.diagnostics import ServiceError as ServiceError
    from promptcache.diagnostics import StoreError as StoreError
    from promptcache.diagnostics import TemplateRefusal as TemplateRefusal
    from promptcache.diagnostics import TierUnavailable as TierUnavailable
    from promptcache.diagnostics import UnknownSchema as UnknownSchema
    from promptcache.diagnostics import UnsupportedModel as UnsupportedModel
    from promptcache.encode import Audit as Audit
    from promptcache.engine import Engine as Engine
    from promptcache.kv import BlobTier as BlobTier
    from promptcache.kv import StoreConfig as StoreConfig
    from promptcache.language import CheckedSchema as CheckedSchema
    from promptcache.language import Prompt as Prompt
    from promptcache.language import Schema as Schema
    from promptcache.layout import Layout as Layout
    from promptcache.layout import Level as Level
    from promptcache.layout import Plan as Plan
    from promptcache.loops import PrefixCache as PrefixCache
    from promptcache.loops import frequent_prefixes as frequent_prefixes
    from promptcache.session import Chat as Chat
    from promptcache.session import EngineStats as EngineStats
    from promptcache.session import WarmReport as WarmReport
    from promptcache.settings import ServiceLimits as ServiceLimits
    from promptcache.structured import Choice as Choice
    from promptcache.structured import Grammar as Grammar
    from promptcache.structured import JSONSchema as JSONSchema
    from promptcache.structured import Regex as Regex
    from promptcache.structured import ToolCall as ToolCall

__version__ = "0.1.0"

_NAMES = {
    "promptcache.answers": "TokenLogprobs",
    "promptcache.decode": (
        "AsyncStream Completion FinishReason Score Service ServiceObserver Stream Ticket Timing Usage"
    ),
    "promptcache.diagnostics": (
        "Cancelled ContextLengthExceeded CorruptEncoding Diagnostic EngineClosed InvalidGeneration InvalidOutput "
        "InvalidValue LanguageError ModelChanged ModelError ModelNotFound NotFinite PromptCacheError PromptError "
        "QueueFull QueueTimeout SchemaError ServiceClosed ServiceError StoreError TemplateRefusal TierUnavailable "
        "UnknownSchema UnsupportedModel"
    ),
    "promptcache.encode": "Audit",
    "promptcache.engine": "Engine",
    "promptcache.kv": "BlobTier StoreConfig",
    "promptcache.language": "CheckedSchema Prompt Schema",
    "promptcache.layout": "Layout Level Plan",
    "promptcache.loops": "PrefixCache frequent_prefixes",
    "promptcache.session": "Chat EngineStats WarmReport",
    "promptcache.settings": "ServiceLimits",
    "promptcache.structured": "Choice Grammar JSONSchema Regex ToolCall",
}
"""The public names of each room."""

_HOMES = {name: room for room, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOMES)

__getattr__, __dir__ = lazy_names(__name__, _HOMES)

if "IPython" in sys.modules:  # notebooks show schemas, layouts, plans and answers as pictures
    import_module("promptcache.picture").register()
