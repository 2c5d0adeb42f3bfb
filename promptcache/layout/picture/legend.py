"""The legend: what the styles in a drawing mean.

Comes in: the styles that occur. Goes out: entries in a fixed order. This file does not know how they are drawn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

_MEANINGS = {
    "turn": "chat turn",
    "module": "module",
    "union": "union: members share their start",
    "cached": "text, encoded once",
    "frame": "turn header or footer, BOS",
    "uncached": "not cached: new in every request",
    "reused": "reused",
    "new": "new in this prompt",
    "slot": "slot",
    "filler": "its filler while encoding",
    "gap": "no text",
    "absent": "not in this prompt",
    "next": "generation starts",
    "many": "several parts, too small to draw apart",
}


def entries(styles: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield a style and its meaning for all that occur in `styles`, each of which may be several words."""
    words = {word for style in styles for word in (style.split() if "absent" not in style else ["absent"])}
    return ((style, meaning) for style, meaning in _MEANINGS.items() if style in words)
