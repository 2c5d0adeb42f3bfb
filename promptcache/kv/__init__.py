"""Keys and values: their types, their keys, and the stores that hold them.

Other rooms import from here only. Names that need POSIX or fsspec are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from promptcache.kv.codec import StoredEncoding, TensorSpec, apply_codec, codec_named, stored_bytes
from promptcache.kv.eviction import GreedyDual, cost_at
from promptcache.kv.files.blob_tier import BlobTier
from promptcache.kv.files.format import Header
from promptcache.kv.keys import FORMAT_VERSION, Codec, Recipe
from promptcache.kv.memory import KVMemory
from promptcache.kv.memory_store import MemoryStore
from promptcache.kv.store import FaultLog, Lookup, OnWait, Store, Tier, go_on
from promptcache.kv.store_config import (
    StoreConfig,
    StoreSource,
    checked_source,
    config_of,
    open_blob_tiers,
    open_store,
)
from promptcache.kv.tiered import TieredStore, stored_facts
from promptcache.kv.types import KVHandle, KVShape, LayerViews, Slab, size_class
from promptcache.lazy import lazy_names

if TYPE_CHECKING:
    from promptcache.kv.files.disk import DiskTier, VerifyResult
    from promptcache.kv.files.folder import expand_home
    from promptcache.kv.files.remote import RemoteTier

_LAZY = {
    "DiskTier": "promptcache.kv.files.disk",
    "RemoteTier": "promptcache.kv.files.remote",
    "VerifyResult": "promptcache.kv.files.disk",
    "expand_home": "promptcache.kv.files.folder",
}

__all__ = [
    "FORMAT_VERSION",
    "BlobTier",
    "Codec",
    "DiskTier",
    "FaultLog",
    "GreedyDual",
    "Header",
    "KVHandle",
    "KVMemory",
    "KVShape",
    "LayerViews",
    "Lookup",
    "MemoryStore",
    "OnWait",
    "Recipe",
    "RemoteTier",
    "Slab",
    "Store",
    "StoreConfig",
    "StoreSource",
    "StoredEncoding",
    "TensorSpec",
    "Tier",
    "TieredStore",
    "VerifyResult",
    "apply_codec",
    "checked_source",
    "codec_named",
    "config_of",
    "cost_at",
    "expand_home",
    "go_on",
    "open_blob_tiers",
    "open_store",
    "size_class",
    "stored_bytes",
    "stored_facts",
]

__getattr__, __dir__ = lazy_names(__name__, _LAZY)
