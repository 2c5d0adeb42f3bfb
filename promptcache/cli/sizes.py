"""Numbers of bytes as people write and read them.

Comes in: text such as "8 GB", or a number. Goes out: the other.
"""

from __future__ import annotations

import re
from typing import Any

import click

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


class Size(click.ParamType[int]):
    """A number of bytes: "8 GB", "512MiB", "1000000"."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        if isinstance(value, int):
            return value
        parts = _SIZE.fullmatch(value)
        if parts is None or parts[2].lower() not in _UNITS:
            self.fail(f"{value!r} is no size; write it like 500MB, 8GB or 2GiB", param, ctx)
        return int(float(parts[1]) * _UNITS[parts[2].lower()])


def size_text(nbytes: int) -> str:
    """Write a number of bytes with a binary unit."""
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:,.4g} GiB"
