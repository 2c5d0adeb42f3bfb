"""Keys and values: their types, their keys, and the stores that hold them.

Other rooms import from here only.
"""

from __future__ import annotations

from promptcache.codecs import Codec
from promptcache.kv.codec import StoredEncoding, apply_codec, codec_named, stored_bytes
from promptcache.kv.eviction import cost_at
from promptcache.kv.files.blob_tier import BlobTier
from promptcache.kv.files.local import expand_home
from promptcache.kv.files.tier import FileTier, VerifyResult
from promptcache.kv.keys import FORMAT_VERSION, Recipe
from promptcache.kv.memory import KVMemory
from promptcache.kv.store import Lookup, OnWait, Store, go_on
from promptcache.kv.store_config import StoreConfig, StoreSource, checked_source, config_of, open_store
from promptcache.kv.types import KV, KVShape, LayerViews, Tier
