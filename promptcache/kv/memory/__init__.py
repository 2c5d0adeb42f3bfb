"""The memory tier: arenas, the ranges that are free in them, and the store that owns the KV."""
