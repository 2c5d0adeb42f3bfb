"""The memory tier: the store that owns KV in memory, and the arenas that it allocates from."""
