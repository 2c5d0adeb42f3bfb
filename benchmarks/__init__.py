"""Benchmarks for the figures of this repository: `python -m benchmarks`. The wheel does not have them."""
