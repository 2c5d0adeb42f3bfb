"""Benchmarks of what this repository says about itself: `python -m benchmarks`. No part of the wheel."""
