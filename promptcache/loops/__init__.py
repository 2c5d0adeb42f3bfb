"""KV for the caller's own loops: linked prompts, and prefixes of token IDs."""

from promptcache.loops.frequent_prefixes import frequent_prefixes
from promptcache.loops.own_loop import dynamic_cache_inputs, linked_inputs
from promptcache.loops.prefix_cache import PrefixCache

__all__ = [
    "PrefixCache",
    "dynamic_cache_inputs",
    "frequent_prefixes",
    "linked_inputs",
]
