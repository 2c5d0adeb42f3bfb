"""Units of length and their size in metres."""

SIZES = {"m": 1.0, "km": 1000.0, "mi": 1609.344}


def size_of(unit: str) -> float:
    """Return the size of a unit in metres."""
    if unit not in SIZES:
        raise ValueError(f"unknown unit {unit!r}; known are {', '.join(SIZES)}")
    return SIZES[unit]
