"""Numbers, byte counts and lists of names as words of a message."""

from __future__ import annotations

import re
from collections.abc import Sequence

ROOT = "(root)"
"""Shown as the path of text outside modules."""

LINK = re.compile(r"\[([^]]+)\]\([^)]+\)")


def plain_text(markdown: str) -> str:
    """Return Markdown without links and without the quotes of code."""
    return LINK.sub(r"\1", markdown).replace("`", "")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 token", "2 tokens"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size_text(nbytes: int) -> str:
    """Return a number of bytes with a binary unit: "4 KiB"."""
    amount = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:,.4g} GiB"


def millinats_text(nats: float) -> str:
    """Return nats as text in millinats, with one decimal."""
    return f"{round(1000 * nats, 1) + 0.0:.1f}"  # rounding gives no minus zero


def listed(names: Sequence[str], max_names: int) -> str:
    """Return names as a list; names after the first `max_names` are only counted."""
    rest = len(names) - max_names
    if rest <= 1:  # a single name is as short as its count
        return ", ".join(names)
    return f"{', '.join(names[:max_names])} and {rest:,} more"


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its type if the message is empty."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
