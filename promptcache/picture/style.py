"""Define the colours of pictures, light and dark, and the style sheets of SVG and HTML.

All rules are scoped to the class of the picture, so the style of the surrounding page does not change. The SVG
contains literal colours, because several viewers do not support custom properties. The HTML follows the theme of a
notebook.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

ROOT_CLASS = "promptcache"
FONT_SIZE = 12


class Colour(NamedTuple):
    """One colour in the light and in the dark scheme."""

    light: str
    dark: str


PAPER = Colour("#ffffff", "#14171f")
INK = Colour("#182032", "#e9edf5")
FADED = Colour("#5c6678", "#99a3b6")
AXIS = Colour("#d3d9e4", "#363d4c")
STRIPE = Colour("#d39a1a", "#a87b1d")
DOT = Colour("#aab3c4", "#525d70")
LIT = Colour("#ffe9a8", "#3d3410")

FILLS = {
    "module": Colour("#dbe6fa", "#22304d"),
    "union": Colour("#b8bfcc", "#4a5364"),
    "turn": Colour("#e6d3f7", "#40295f"),
    "scaffold": Colour("#cbeae6", "#173a3d"),
    "prompt": Colour("#fdeedd", "#33281b"),
    "root": PAPER,
    "fold": Colour("#c9d4ea", "#33425f"),
    "cached": Colour("#a9c5f5", "#2b4a7e"),
    "together": Colour("#83cbcd", "#1d656b"),
    "frame": Colour("#cdbbf0", "#4a3b76"),
    "uncached": Colour("#f8c4b6", "#7d3527"),
    "slot": Colour("#fff3d2", "#352a0e"),
    "filler": Colour("#f4d27a", "#6d5411"),
    "reused": Colour("#9bdbb9", "#1c5a3c"),
    "repaired": Colour("#f2b3d6", "#702e56"),
    "new": Colour("#ffc185", "#83480e"),
    "text": PAPER,
    "next": Colour("#d43d51", "#ff7384"),
}
"""Colours of the parts. A test checks that labels are readable on them."""

MEANINGS = {
    "cached": "text, encoded once",
    "frame": "turn header or footer, BOS",
    "together": "encoded once more, together",
    "uncached": "not cached: new in every request",
    "reused": "reused",
    "repaired": "stored, and computed again",
    "new": "new in this prompt",
    "slot": "slot",
    "filler": "its filler while encoding",
    "gap": "no text",
    "absent": "not in this prompt",
    "next": "generation starts",
    "module": "module",
    "union": "union: members share their start",
    "turn": "chat turn",
    "scaffold": "scaffold",
    "many": "folded: several parts",
}
"""Entries of the legend, in order."""


def legend(looks: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the CSS class and the description of every style that occurs."""
    for look, meaning in MEANINGS.items():
        if look in looks:
            yield ("fold" if look == "many" else look), meaning


def svg_style(num_contexts: int) -> str:
    """Return the style sheet of an SVG."""
    shapes = (
        f"text {{ font: {FONT_SIZE}px ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace; "
        "white-space: pre }",
        ".head { font-weight: bold }",
        "rect.slot, rect.absent { stroke-width: 1 }",
        "rect.absent { fill: none; stroke-dasharray: 3 2 }",
        "rect.slot { fill: url(#promptcache-stripes) }",
        "rect.slot.absent { fill: none }",
        "rect.gap { fill: url(#promptcache-dots) }",
        "rect.gap.absent { fill: none; stroke: none }",
        ".name, .title { paint-order: stroke; stroke-width: 3px; stroke-linejoin: round }",
        ".row .back { fill: none; pointer-events: all }",
    )
    light, dark = ("\n".join(_svg_colours(scheme)) for scheme in (0, 1))
    return "\n".join(
        [
            *(f".{ROOT_CLASS} {rule}" for rule in shapes),
            light,
            f"@media (prefers-color-scheme: dark) {{\n{dark}\n}}",
            *_lit(num_contexts, ".back", ("fill: " + LIT.light, "fill: " + LIT.dark)),
        ]
    )


def _svg_colours(scheme: int) -> Iterator[str]:
    rules = [(f".{name}", "fill", colour) for name, colour in FILLS.items()]
    rules += [
        (".paper", "fill", PAPER),
        (".slot-paper", "fill", FILLS["slot"]),
        ("text", "fill", INK),
        (".faded", "fill", FADED),
        (".axis", "stroke", AXIS),
        (".stripe", "stroke", STRIPE),
        (".dot", "fill", DOT),
        (".absent", "stroke", DOT),
        (".uncached", "stroke", Colour("#b8452a", "#f09a84")),
        ("rect.slot", "stroke", STRIPE),
        (".name", "stroke", FILLS["slot"]),
        (".title", "stroke", PAPER),
    ]
    return (f".{ROOT_CLASS} {selector} {{ {name}: {colour[scheme]} }}" for selector, name, colour in rules)


def _lit(num_contexts: int, target: str, colours: tuple[str, str]) -> Iterator[str]:
    """Yield the rules that highlight the context of a line on hover."""
    lit = [f".{ROOT_CLASS}:has(.s{number}:hover) .t{number} {target}".rstrip() for number in range(num_contexts)]
    if lit:
        yield f"{', '.join(lit)} {{ {colours[0]} }}"
        if colours[1] != colours[0]:
            yield f"@media (prefers-color-scheme: dark) {{ {', '.join(lit)} {{ {colours[1]} }} }}"


_VARIABLES = {"ink": INK, "faded": FADED, "line": AXIS, "stripe": STRIPE, "dot": DOT, "lit": LIT, **FILLS}

_HTML = """
{ font: FONT system-ui, sans-serif; color: var(--pc-ink); container-type: inline-size; text-align: left }
p { margin: 0 0 6px } h2 { font-size: 1em; margin: 24px 0 6px }
.head b { margin-right: 12px } .head span, .tick, .num, .say { color: var(--pc-faded) }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px }
.legend i { display: inline-block; width: 12px; height: 12px; margin-right: 6px; vertical-align: -2px }
.row { display: grid; grid-template-columns: minmax(9em, 22%) 1fr 4.5em; column-gap: 8px; align-items: center; \
min-height: 22px; list-style: none; cursor: default }
summary.row { cursor: pointer } summary.row::-webkit-details-marker { display: none }
.row > .say { grid-column: 2 / -1; padding: 2px 0 }
.name { overflow: hidden; white-space: nowrap; text-overflow: ellipsis; \
padding-left: calc(var(--depth, 0) * 12px + 14px) }
summary > .name::before { content: "▸"; display: inline-block; width: 14px; margin-left: -14px }
details[open] > summary > .name::before { content: "▾" }
.num { text-align: right; font-variant-numeric: tabular-nums }
.bar { position: relative; height: 18px }
.bar i, .bar b, .axis .tick { position: absolute; top: 0; bottom: 0; font-style: normal; font-weight: normal }
.bar i, .legend i { min-width: 2px; border-radius: 1px; box-sizing: border-box }
.bar > b { overflow: hidden; min-width: 2px; white-space: nowrap; line-height: 18px; border-radius: 1px; \
box-sizing: border-box }
.bar > b > span { position: relative; display: block; overflow: hidden; text-overflow: ellipsis; padding: 0 3px }
.axis { border-bottom: 1px solid var(--pc-line) }
.axis .tick { white-space: nowrap; line-height: 18px; padding-left: 3px; \
border-left: 1px solid var(--pc-line) }
.slot { border: 1px solid var(--pc-stripe); background-image: repeating-linear-gradient(135deg, transparent 0 4px, \
color-mix(in srgb, var(--pc-stripe) 45%, transparent) 4px 5px) }
.bar > .slot > span { text-shadow: 0 0 3px var(--pc-slot), 0 0 3px var(--pc-slot), 0 0 2px var(--pc-slot) }
.gap { background: radial-gradient(var(--pc-dot) 0.8px, transparent 1px) 0 0 / 5px 5px }
.uncached { border: 1px solid #b8452a }
.absent { background: none !important; border: 1px dashed var(--pc-dot) } .gap.absent { border: none }
.absent, .gone .name { color: var(--pc-faded) }
.row:hover { background: color-mix(in srgb, var(--pc-fold) 35%, transparent) }
.fold-inside { border-left: 2px solid var(--pc-fold); padding-left: 4px; margin: 2px 0 8px }
table { border-collapse: collapse; font: inherit; color: inherit; margin: 0; width: 100% }
.table { overflow-x: auto }
td, th { border-bottom: 1px solid var(--pc-line); padding: 3px 12px 3px 0; text-align: left; vertical-align: top; \
background: none }
th { color: var(--pc-faded); font-weight: normal; white-space: nowrap }
td:empty::before { content: "–"; color: var(--pc-faded) }
.answer { white-space: pre-wrap }
""".strip()

_IF_NARROW = "@container (max-width: 640px)"
_NARROW = """
.row { grid-template-columns: 1fr 4.5em }
.row .bar { grid-column: 1 / -1; grid-row: 2; margin-bottom: 4px }
.row > .say { grid-column: 1 / -1; padding: 0 0 8px calc(var(--depth, 0) * 12px + 14px) }
table, tbody, tr, td { display: block } thead { display: none }
tr { border-bottom: 1px solid var(--pc-line); padding: 5px 0 }
td { border: none; padding: 1px 0; display: grid; grid-template-columns: 8em 1fr; overflow-wrap: anywhere }
td::before { color: var(--pc-faded) } td:empty { display: none }
""".strip()


def html_style(num_contexts: int) -> str:
    """Return the style sheet of an HTML picture, for a page or a notebook."""
    light, dark = (_variables(scheme) for scheme in (0, 1))
    looks = "\n".join(f".{ROOT_CLASS} .{name} {{ background-color: var(--pc-{name}) }}" for name in FILLS)
    in_dark = [f"{theme} .{ROOT_CLASS}" for theme in ('[data-jp-theme-light="false"]', ".vscode-dark", "[theme=dark]")]
    in_light = [f"{theme} .{ROOT_CLASS}" for theme in ('[data-jp-theme-light="true"]', ".vscode-light")]
    return "\n".join(
        [
            f".{ROOT_CLASS} {{ {light} }}",
            f"@media (prefers-color-scheme: dark) {{ .{ROOT_CLASS} {{ {dark} }} }}",
            f"{', '.join(in_light)} {{ {light} }}",
            f"{', '.join(in_dark)} {{ {dark} }}",
            looks,
            _scoped(_HTML.replace("FONT", f"{FONT_SIZE + 1}px")),
            f"{_IF_NARROW} {{ {_scoped(_NARROW)} }}",
            *_lit(num_contexts, "", ("background: var(--pc-lit)",) * 2),
        ]
    )


def table_style(name: str, headings: Sequence[str]) -> str:
    """Return the rules that write the headings of a table into its cells if the picture is narrow."""
    rules = "".join(
        f'.{ROOT_CLASS} .{name} td:nth-child({number})::before {{ content: "{heading}" }} '
        for number, heading in enumerate(headings, 1)
    )
    return f"{_IF_NARROW} {{ {rules}}}"


def page_style() -> str:
    """Return the rules of a page with a single picture."""
    return (
        f"body {{ margin: 16px; background: {PAPER.light} }} "
        f"@media (prefers-color-scheme: dark) {{ body {{ background: {PAPER.dark} }} }}"
    )


def _variables(scheme: int) -> str:
    return "; ".join(f"--pc-{name}: {colour[scheme]}" for name, colour in _VARIABLES.items())


def _scoped(rules: str) -> str:
    """Return the rules, each scoped to the class of the picture."""
    scoped = []
    for rule in rules.replace("}", "}\0").split("\0"):
        selectors, _, body = rule.partition("{")
        if body:
            below = ", ".join(f".{ROOT_CLASS} {each.strip()}".strip() for each in selectors.split(","))
            scoped.append(f"{below} {{{body}")
    return "\n".join(scoped)
