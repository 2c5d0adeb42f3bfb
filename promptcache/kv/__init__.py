"""Keys and values: what they are, what names them, and where they are kept.


Other rooms import from here only. Names of tiers that need POSIX or fsspec are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from promptcache.kv.codec import as_kept, codec_named, kept_bytes
from promptcache.kv.faults import Faults
from promptcache.kv.files.archive import Moved, read_archive, write_archive
from promptcache.kv.files.blob_tier import BlobTier, Form, StoredEncoding
from promptcache.kv.files.header import Header
from promptcache.kv.files.paths import expand_home
from promptcache.kv.keys import FORMAT_VERSION, Codec, Recipe
from promptcache.kv.memory.store import MemoryStore
from promptcache.kv.pace import Pace
from promptcache.kv.store import Lookup, Store, Tier
from promptcache.kv.store_config import StoreConfig, StoreSource, checked_source, config_of, open_blob_tiers, open_store
from promptcache.kv.tiered import TieredStore
from promptcache.kv.types import KVHandle, KVShape, LayerViews, Slab

if TYPE_CHECKING:
    from promptcache.kv.files.disk import DiskTier, Verdict
    from promptcache.kv.files.remote import RemoteTier

_HOMES = {
    "DiskTier": "promptcache.kv.files.disk",
    "RemoteTier": "promptcache.kv.files.remote",
    "Verdict": "promptcache.kv.files.disk",
}

__all__ = [
    "FORMAT_VERSION",
    "BlobTier",
    "Codec",
    "DiskTier",
    "Faults",
    "Form",
    "Header",
    "KVHandle",
    "KVShape",
    "LayerViews",
    "Lookup",
    "MemoryStore",
    "Moved",
    "Pace",
    "Recipe",
    "RemoteTier",
    "Slab",
    "Store",
    "StoreConfig",
    "StoreSource",
    "StoredEncoding",
    "Tier",
    "TieredStore",
    "Verdict",
    "as_kept",
    "checked_source",
    "codec_named",
    "config_of",
    "expand_home",
    "kept_bytes",
    "open_blob_tiers",
    "open_store",
    "read_archive",
    "write_archive",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'promptcache.kv' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
