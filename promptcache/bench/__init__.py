"""Benchmarks: Prompt Cache compared with its alternatives, on the user's own model and machine."""
