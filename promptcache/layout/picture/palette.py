"""Colours of the picture, for light and for dark surroundings.

Comes in: nothing. Goes out: one style sheet, with every rule below the picture's own class, so that a page that holds
the picture keeps its own look. No custom properties: several viewers of SVG do not know them.
"""

from __future__ import annotations

from typing import NamedTuple

ROOT_CLASS = "promptcache-layout"


class Colour(NamedTuple):
    """The same colour in both schemes."""

    light: str
    dark: str


PAPER = Colour("#ffffff", "#14171f")
INK = Colour("#182032", "#e9edf5")
FADED = Colour("#5c6678", "#99a3b6")
AXIS = Colour("#8b95a7", "#69748a")
STRIPE = Colour("#d39a1a", "#a87b1d")
DOT = Colour("#b4bccb", "#465066")

FILLS = {
    "module": Colour("#edf1fa", "#1d2536"),
    "union": PAPER,
    "turn": Colour("#f4effc", "#221d30"),
    "request": Colour("#fff5ea", "#2a2118"),
    "cached": Colour("#bdd3f8", "#2b4a7e"),
    "frame": Colour("#d5c6f2", "#4a3b76"),
    "uncached": Colour("#f8c4b6", "#7d3527"),
    "slot-paper": Colour("#fff3d2", "#352a0e"),
    "filler": Colour("#f4d27a", "#6d5411"),
    "reused": Colour("#a6dfc0", "#1c5a3c"),
    "new": Colour("#ffc185", "#83480e"),
    "text": PAPER,
    "many": Colour("#7f99cf", "#5673ab"),
    "next": Colour("#d43d51", "#ff7384"),
}
"""What stands behind labels; every label has readable contrast to it, which a test asks."""

EDGES = {
    "module": Colour("#9aaed6", "#4d638f"),
    "union": Colour("#7d88a3", "#77829b"),
    "turn": Colour("#b59fdd", "#6a5699"),
    "request": Colour("#e2a763", "#9c6a30"),
    "uncached": Colour("#b8452a", "#f09a84"),
}


def style_sheet() -> str:
    """Return the rules for light surroundings, and those that dark ones change."""
    dark = "\n".join(_colours(1))
    return f"{_SHAPES}\n" + "\n".join(_colours(0)) + f"\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def _colours(scheme: int) -> list[str]:
    rules = [_rule(f".{name}", "fill", colour[scheme]) for name, colour in FILLS.items()]
    rules += [_rule(f".{name}", "stroke", colour[scheme]) for name, colour in EDGES.items()]
    rules += [
        _rule(".paper", "fill", PAPER[scheme]),
        _rule("text", "fill", INK[scheme]),
        _rule(".faded", "fill", FADED[scheme]),
        _rule(".name", "stroke", FILLS["slot-paper"][scheme]),
        _rule(".axis", "stroke", AXIS[scheme]),
        _rule(".stripe", "stroke", STRIPE[scheme]),
        _rule(".dot", "fill", DOT[scheme]),
        _rule(".absent", "stroke", DOT[scheme]),
    ]
    return rules


def _rule(selector: str, name: str, value: str) -> str:
    return f".{ROOT_CLASS} {selector} {{ {name}: {value} }}"


_SHAPES = "\n".join(
    f".{ROOT_CLASS} {rule}"
    for rule in (
        "text { font: 11px ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace; white-space: pre }",
        *(f".{name} {{ font-size: 10px }}" for name in ("words", "name", "tick", "legend", "summary")),
        ".head { font-size: 14px; font-weight: bold }",
        ".name { paint-order: stroke; stroke-width: 3px; stroke-linejoin: round }",
        ".union { stroke-dasharray: 3 2 }",
        ".absent { stroke-dasharray: 3 2 }",
        "rect.absent { fill: none }",
        "rect.slot { fill: url(#promptcache-stripes) }",
        "rect.slot.absent { fill: none }",
        "rect.gap { fill: url(#promptcache-dots) }",
        "rect.gap.absent { fill: none; stroke: none }",
    )
)
