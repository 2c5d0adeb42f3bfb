"""Draws pictures of docs/images from plans of the demo model and figures of pages: `python -m tools.pictures`.

`promptcache layout --svg` draws the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from promptcache import Engine
from promptcache.layout import num_shared
from promptcache.picture import HTML_STYLE, Part, view

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
_COLOUR = re.compile(r"light-dark\((#\w+), (#\w+)\)")
_STYLE = "".join(f"{line}\n" for line in HTML_STYLE.splitlines() if re.search("fill:|text-anchor:", line))
_WIDTH, _LEFT, _MARGIN = 760, 160, 12


def pictures() -> dict[str, str]:
    """Return the SVG of each picture by the name of its file."""
    engine = Engine.from_pretrained("demo", device="cpu")
    for name in ("travel", "support"):
        engine.add_schema(ROOT / f"schemas/{name}.xml")
    return {
        "reuse.svg": _reuse(engine),
        "attends.svg": _attends(engine),
        "ttft.svg": _ttft(),
        "quality.svg": _quality(),
    }


def _reuse(engine: Engine) -> str:
    """Draw what is encoded of a schema, what two prompts reuse, and what a prefix cache reuses of the second one."""
    schema = view(engine.layout("travel"))
    prompts = [engine.plan(ROOT / f"examples/travel/{name}.xml") for name in ("miami", "paris")]
    first, second = ([token for piece in plan.pieces for token in piece.token_ids] for plan in prompts)
    shared = num_shared(first, second)
    rows = {
        "the schema, stored": [(_label(part), [("cached", part.num_tokens)]) for part in _own(schema)],
        **{f"prompt {number}": _uses(view(plan)) for number, plan in enumerate(prompts, start=1)},
        "prompt 2, prefix cache": [("", [("reused", shared), ("new", len(second) - shared)])],
    }
    scale = (_WIDTH - _LEFT - _MARGIN) / sum(part.num_tokens for part in _own(schema))
    boxes, words = [], []
    for number, (title, parts) in enumerate(rows.items()):
        x, y = float(_LEFT), 14 + 40 * number
        words.append(_text(_MARGIN, y + 16, title))
        for label, pieces in parts:
            if scale * sum(tokens for _, tokens in pieces) > 6.6 * len(label):
                words.append(_text(x + 3, y + 16, label))
            for use, tokens in pieces:
                boxes.append(f'<rect class="{use}" x="{x:.1f}" y="{y}" width="{scale * tokens:.1f}" height="24"/>')
                x += scale * tokens
    keys = {"cached": "encoded once", "reused": "reused", "repaired": "stored, and computed again", "new": "new"}
    return _svg(200, "What two prompts reuse of a schema", [*boxes, *words, *_legend(keys, 178)])


def _own(root: Part) -> Iterator[Part]:
    """Yield the parts with tokens of their own, in their order."""
    found = (part for part in root.walk() if part.present and not part.kind.is_leaf and part.num_tokens)
    return iter(sorted(found, key=lambda part: min(leaf.start for leaf in part.leaves)))


def _uses(root: Part) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return the name of each part of a prompt, and use and number of its tokens in their order."""
    return [
        (
            _label(part),
            [
                (use, stop - start)
                for start, stop, use in sorted(each for leaf in part.leaves for each in leaf.stretches)
            ],
        )
        for part in _own(root)
    ]


def _label(part: Part) -> str:
    names = {"travel": "", "system": "always there", "added by the prompt": "question"}
    return names.get(part.name, part.name.rpartition("/")[2])


def _attends(engine: Engine) -> str:
    """Draw which texts of a prompt each module attended to when it was encoded."""
    always = {part.name: part.sees for part in view(engine.layout("support")).walk()}
    plan = view(engine.plan(ROOT / "examples/support/refund.xml", repair="slots"))
    modules = [part for part in plan.walk() if part.kind == "module" and part.present and part.num_tokens]
    names = ["", *(part.name for part in modules), "question"]
    seen = {part.name: part.sees for part in modules} | {"": (), "question": tuple(names)}
    drawn, left = [], 150
    for row, name in enumerate(names):
        y = 40 + 28 * row
        label = name.rpartition("/")[2] or "always there"
        drawn += [_text(_MARGIN, y + 16, label), _text(left + 100 * row, 28, label, "faded")]
        for column, other in enumerate(names[: row + 1]):
            if name == "question":
                style = "new"
            elif other == name or other in always[name]:
                style = "reused"
            else:
                style = "repaired" if other in seen[name] else "axis"
            drawn.append(f'<rect class="{style}" x="{left + 100 * column}" y="{y}" width="96" height="24"/>')
    keys = {"reused": "always", "repaired": "the module before", "axis": "not seen", "new": "in each request"}
    y = 40 + 28 * len(names) + 10
    return _svg(y + 24, "What each text of a prompt attends to", [*drawn, *_legend(keys, y)])


def _ttft() -> str:
    """Plot README's times to first token over cached tokens."""
    rows = {4 * size: _row("README.md", str(size)) for size in (40, 150, 400)}
    points = []
    for column, style in (("ordinary prefill", "next"), ("reused", "reused")):
        points.append((column, style, [(float(size), _number(row, column)) for size, row in rows.items()]))
    axes = (range(0, 1801, 400), "cached tokens"), (range(0, 4001, 1000), "ms")
    return _plot("Time to first token over cached tokens", points, *axes)


def _quality() -> str:
    """Plot right answers over the time to first token, as docs/fidelity.md has them."""
    right, times = _row("docs/fidelity.md", "sum of 400"), _row("docs/fidelity.md", "150")
    points = [
        (name, "next" if name == "ordinary prefill" else "reused", [(_number(times, name), _number(right, name))])
        for name in right
        if name in times and right[name]
    ]
    axes = (range(0, 601, 100), "ms to the first token"), (range(200, 281, 20), "right answers of 400")
    return _plot("Right answers over time to first token", points, *axes)


def _plot(
    title: str,
    lines: Iterable[tuple[str, str, list[tuple[float, float]]]],
    across: tuple[range, str],
    up: tuple[range, str],
) -> str:
    """Draw points of (x, y), with a line between those of one name. An axis has the values of its range, and a name."""
    left, top, width, height = 70, 34, 560, 220
    (xs, x_name), (ys, y_name) = across, up

    def place(x: float, y: float) -> tuple[float, float]:
        return left + width * (x - xs[0]) / (xs.stop - 1 - xs[0]), top + height * (ys[-1] - y) / (ys[-1] - ys[0])

    drawn = [_text(_MARGIN, 18, y_name, "faded"), _text(left + width, top + height + 36, x_name, "faded number")]
    drawn += [_text(place(x, 0)[0] + 10, top + height + 18, f"{x:,}", "faded number") for x in xs]
    for value in ys:
        y = place(0, value)[1]
        drawn += [f'<rect class="axis" x="{left}" y="{y:.1f}" width="{width}" height="1"/>']
        drawn.append(_text(left - 6, y + 4, f"{value:,}", "faded number"))
    before_x = 0.0
    for name, style, points in sorted(lines, key=lambda line: line[2][-1], reverse=True):
        spots = [place(*point) for point in points]
        for (x, y), (to_x, to_y) in pairwise(spots):
            corners = f"{x:.1f},{y - 1:.1f} {to_x:.1f},{to_y - 1:.1f} {to_x:.1f},{to_y + 1:.1f} {x:.1f},{y + 1:.1f}"
            drawn.append(f'<polygon class="{style}" points="{corners}"/>')
        drawn += [f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>' for x, y in spots]
        is_near = 0 < before_x - spots[-1][0] < 20  # the next point is where the name would be
        drawn.append(_text(spots[-1][0] + (-8 if is_near else 8), spots[-1][1] + 4, name, "number" if is_near else ""))
        before_x = spots[-1][0]
    return _svg(top + height + 46, title, drawn)


def _row(page: str, name: str) -> dict[str, str]:
    """Return the first row of a page's tables whose name ends so, by the heads of its columns."""
    head, before = [""], [""]
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().removesuffix(" (default)") for cell in line.strip("|").split("|")]
        if set(line) == set("|-"):
            head = before
        elif line.startswith("|") and cells[0].endswith(name):
            return dict(zip(head[1:], cells[1:], strict=True))
        before = cells
    raise LookupError(f"{page} has no row {name}")


def _number(row: dict[str, str], column: str) -> float:
    """Return a cell, which may be a multiple of that of `slots`."""
    factor, _, base = row[column].partition(" × ")
    return float(factor.replace(",", "")) * (_number(row, base.strip("`")) if base else 1)


def _legend(keys: Mapping[str, str], y: int) -> Iterator[str]:
    x = _MARGIN
    for style, words in keys.items():
        yield f'<rect class="{style}" x="{x}" y="{y}" width="12" height="12"/>'
        yield _text(x + 18, y + 11, words)
        x += 44 + 7 * len(words)


def _text(x: float, y: float, text: str, style: str = "") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{text}</text>'


def _svg(height: int, title: str, drawn: Iterable[str]) -> str:
    light, dark = (_COLOUR.sub(rf"\{scheme}", _STYLE) for scheme in (1, 2))
    style = f"<style>{light}@media (prefers-color-scheme: dark) {{\n{dark}}}</style>"
    size = f'width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    paper = '<rect class="paper" width="100%" height="100%"/>'
    inside = "\n".join([f"<title>{title}</title>", style, paper, *drawn])
    return f'<svg xmlns="http://www.w3.org/2000/svg" class="promptcache" role="img" {size}>\n{inside}\n</svg>\n'


if __name__ == "__main__":
    for name, picture in pictures().items():
        (IMAGES / name).write_text(picture, encoding="utf-8")
