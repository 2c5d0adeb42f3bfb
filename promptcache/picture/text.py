"""Prepare text for pictures: one line, no control characters, a limited length.

The results are valid XML text, and their width in a monospaced font is known.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator

ELLIPSIS = "…"
_SIGNS = {"\n": "↵", "\t": "⇥", "\r": "␍", "\xa0": " "}
_LEAST_COLUMNS = 7  # minimum length of a shortened label


def shown(text: str) -> str:
    """Return `text` with symbols for line breaks and control characters, and without format characters."""
    return text if text.isprintable() else "".join(map(_sign, text))


def excerpt(text: str, max_chars: int) -> str:
    """Return the beginning of `text` in quotes."""
    cut = shown(text[:max_chars])
    return f"“{cut}{ELLIPSIS}”" if len(text) > max_chars else f"“{cut}”"


def columns(text: str) -> int:
    """Return the width of `text` in columns of a monospaced font."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def fit(labels: Iterable[str], max_columns: int, *, keep_end: bool = True) -> str:
    """Return the first label that fits, else the last one shortened, else the empty text.

    Args:
        labels: The longest first.
        max_columns: Width in columns.
        keep_end: Whether a shortened label keeps its end: names often differ there.
    """
    label = ""
    for label in map(shown, labels):
        if columns(label) <= max_columns:
            return label
    if max_columns < _LEAST_COLUMNS:
        return ""
    end = (max_columns - 1) // 2 if keep_end else 0
    tail = _head(label[::-1], end)[::-1]
    return _head(label, max_columns - 1 - end) + ELLIPSIS + tail


def wrap(facts: Iterable[str], max_columns: int) -> Iterator[str]:
    """Yield lines of facts with dots between them; only a fact that is longer than a line is shortened."""
    line = ""
    for fact in facts:
        more = f"{line} · {fact}" if line else fact
        if line and columns(more) > max_columns:
            yield line
            more = fact
        line = fit([more], max_columns, keep_end=False)
    if line:
        yield line


def _head(text: str, max_columns: int) -> str:
    """Return the longest prefix of `text` that fits."""
    taken = 0
    for index, char in enumerate(text):
        taken += _columns(char)
        if taken > max_columns:
            return text[:index]
    return text


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _sign(char: str) -> str:
    if char in _SIGNS:
        return _SIGNS[char]
    if char.isprintable():
        return char
    match unicodedata.category(char):
        case "Cf":
            return ""
        case "Zs" | "Zl" | "Zp":
            return " "
    return "�"
