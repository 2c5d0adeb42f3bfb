"""Keys and values: what they are, what names them, and where they rest."""

from promptcache.kv.keys import encoding_key
from promptcache.kv.memory import MemoryStore
from promptcache.kv.store import Store
from promptcache.kv.types import KVShape, RunKV, Slab

__all__ = ["KVShape", "MemoryStore", "RunKV", "Slab", "Store", "encoding_key"]
