"""Prompt Cache: modular prompts whose attention states are computed once and linked without copying."""
