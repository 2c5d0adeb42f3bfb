"""Keys and values: what they are, what names them, and where they rest."""

from promptcache.kv.keys import Codec, Recipe, store_key
from promptcache.kv.memory import MemoryStore
from promptcache.kv.opening import StoreConfig
from promptcache.kv.pace import Pace
from promptcache.kv.shelf import Form, Resting, Shelf
from promptcache.kv.store import Lookup, SharedStore, Store, Tier
from promptcache.kv.tiered import TieredStore
from promptcache.kv.types import KVShape, RunKV, Slab

__all__ = [
    "Codec",
    "Form",
    "KVShape",
    "Lookup",
    "MemoryStore",
    "Pace",
    "Recipe",
    "Resting",
    "RunKV",
    "SharedStore",
    "Shelf",
    "Slab",
    "Store",
    "StoreConfig",
    "Tier",
    "TieredStore",
    "store_key",
]
