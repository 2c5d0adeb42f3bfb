"""Lengths from one unit to another."""

from unit import size_of


def convert(value: float, source: str, target: str) -> float:
    """Return `value`, given in `source` units, in `target` units."""
    return value * size_of(source) / size_of(target)
