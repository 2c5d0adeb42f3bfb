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
    from promptcache.decode import Completion
    from promptcache.diagnostics import Diagnostic, PromptCacheError, PromptError, SchemaError
    from promptcache.engine import Engine
    from promptcache.kv import BlobTier, StoreConfig
    from promptcache.language import Prompt, Schema
    from promptcache.layout import Layout, Level, Plan
    from promptcache.loops import PrefixCache, frequent_prefixes
    from promptcache.structured import Choice, Grammar, JSONSchema, Regex

__version__ = "0.1.0"

_HOMES = {
    "BlobTier": "promptcache.kv",
    "Choice": "promptcache.structured",
    "Completion": "promptcache.decode",
    "Diagnostic": "promptcache.diagnostics",
    "Engine": "promptcache.engine",
    "Grammar": "promptcache.structured",
    "JSONSchema": "promptcache.structured",
    "Layout": "promptcache.layout",
    "Level": "promptcache.layout",
    "Plan": "promptcache.layout",
    "PrefixCache": "promptcache.loops",
    "Prompt": "promptcache.language",
    "PromptCacheError": "promptcache.diagnostics",
    "PromptError": "promptcache.diagnostics",
    "Regex": "promptcache.structured",
    "Schema": "promptcache.language",
    "SchemaError": "promptcache.diagnostics",
    "StoreConfig": "promptcache.kv",
    "frequent_prefixes": "promptcache.loops",
}

__all__ = [
    "BlobTier",
    "Choice",
    "Completion",
    "Diagnostic",
    "Engine",
    "Grammar",
    "JSONSchema",
    "Layout",
    "Level",
    "Plan",
    "PrefixCache",
    "Prompt",
    "PromptCacheError",
    "PromptError",
    "Regex",
    "Schema",
    "SchemaError",
    "StoreConfig",
    "frequent_prefixes",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)

if "IPython" in sys.modules:  # notebooks show schemas, layouts, plans and answers as pictures
    import_module("promptcache.picture").register()
