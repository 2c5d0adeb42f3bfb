"""KV for the caller's own loops: linked prompts, and prefixes of token IDs."""

from promptcache.loops.frequent_prefixes import frequent_prefixes
from promptcache.loops.own_loop import linked_inputs
from promptcache.loops.prefix_cache import PrefixCache
