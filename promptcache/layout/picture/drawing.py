"""A layout to a drawing: what to show, at which scale, on which lines, how high.

Comes in: a layout, its encodings, perhaps a plan. Goes out: a `Drawing` in pixels. This file knows no XML.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil, inf
from typing import NamedTuple

from promptcache.layout.picture.excerpt import columns, counted, size
from promptcache.layout.picture.fold import cut
from promptcache.layout.picture.heights import COMPACT, DENSE, ROOMY, TINY, Heights, rows_height
from promptcache.layout.picture.measure import measure
from promptcache.layout.picture.parts import Box
from promptcache.layout.picture.place import Detail, Placer
from promptcache.layout.picture.scale import CHAR_WIDTH, LABEL_PAD, MARK_FONT, Scale, make_scale, wanted_lines
from promptcache.layout.picture.shapes import Line, Shape
from promptcache.layout.types import Layout, Plan, RunState

HEAD_HEIGHT = 48.0
_AXIS_HEIGHT = 22.0
_AROUND = _AXIS_HEIGHT + 14.0

_FORMS = (
    (ROOMY, 1, 2_400.0),
    (DENSE, 1, 20_000.0),
    (DENSE, 2, 20_000.0),
    (DENSE, 4, 20_000.0),
    (COMPACT, 4, 36_000.0),
    (TINY, 4, inf),
)
"""The most pleasant first: heights, by how much there are fewer lines than wanted, and how high the picture may get."""

_DETAILS = tuple(Detail(narrow=4.0 * 2**n, max_rows=4_000 >> 2 * n) for n in range(6))
_MAX_BYTES = 2_050_000  # of shapes, as they are estimated; the file has somewhat less


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A picture in pixels.

    Attributes:
        title: Name of what is drawn.
        summary: What is said about the whole.
        bottom: Where the lines of positions end; the legend comes below.
    """

    title: str
    summary: str
    scale: Scale
    lines: tuple[Line, ...]
    bottom: float

    @property
    def shapes(self) -> Iterator[Shape]:
        """The shapes of all lines."""
        return chain.from_iterable(line.shapes for line in self.lines)


class _Form(NamedTuple):
    """How the picture is drawn: each line's first position with what stands there, at a scale and in heights."""

    scale: Scale
    heights: Heights
    parts: list[tuple[int, Box]]


def draw(layout: Layout, states: Sequence[RunState], plan: Plan | None, token_bytes: int | None, width: int) -> Drawing:
    """Return the drawing of a layout, or of what a prompt does with it."""
    form = _choose_form(measure(layout, states, plan, token_bytes), width)
    lines, bottom = _draw_lines(form)
    summary = _about(layout, states, token_bytes) if plan is None else _about_prompt(plan, token_bytes)
    return Drawing(title=layout.schema.name, summary=summary, scale=form.scale, lines=lines, bottom=bottom)


def _choose_form(root: Box, width: int) -> _Form:
    """Take as many lines, as high, as is pleasant to scroll."""
    num_lines = wanted_lines(root, width)
    for heights, fewer, max_height in _FORMS:
        scale = make_scale(root, width, ceil(num_lines / fewer))
        parts = [(start, cut(root, start, stop)) for start, stop in scale.lines]
        closed = _DETAILS[0].narrow / scale.pixels
        if sum(_AROUND + rows_height(box.rows, heights, closed) for _, box in parts) <= max_height:
            break
    return _Form(scale, heights, parts)


def _draw_lines(form: _Form) -> tuple[tuple[Line, ...], float]:
    """Draw in as much detail as makes a file of bearable size; return every line, and where the last one ends."""
    for detail in _DETAILS:
        lines = []
        y = HEAD_HEIGHT
        for start, box in form.parts:
            placed = Placer(form.scale, form.heights, detail, start).rows(box.rows, y + _AXIS_HEIGHT)
            ticks = tuple(_ticks(form.scale, start, box.stop))
            stop_x = form.scale.x(box.stop, start)
            lines.append(Line(y=y, stop_x=stop_x, ticks=ticks, shapes=tuple(placed.shapes)))
            y += _AROUND + placed.height
        if sum(shape.num_bytes for line in lines for shape in line.shapes) <= _MAX_BYTES:
            break
    return tuple(lines), y


def _ticks(scale: Scale, start: int, stop: int) -> Iterator[tuple[float, str]]:
    """Yield where the axis has ticks, and their names: the first position of the line, and round ones after it."""
    step = scale.tick_step
    first = -(-start // step) * step
    for position in dict.fromkeys([start, *range(first, stop + 1, step)]):
        x = scale.x(position, start)
        name = f"{position:,}"
        room = (scale.x(first, start) if position < first else scale.width) - x
        yield x, name if columns(name) * CHAR_WIDTH * MARK_FONT + LABEL_PAD <= room else ""


def _about(layout: Layout, states: Sequence[RunState], token_bytes: int | None) -> str:
    num_tokens = sum(state.encoding.num_tokens for state in states)
    facts = [
        counted(layout.stop, "position"),
        counted(len(layout.schema.modules), "module"),
        f"{counted(num_tokens, 'token')} in {counted(len(states), 'encoding')}",
        *([] if token_bytes is None else [f"KV {size(num_tokens * token_bytes)}"]),
    ]
    return " · ".join(facts)


def _about_prompt(plan: Plan, token_bytes: int | None) -> str:
    kept = "" if token_bytes is None else f" (KV {size(plan.num_reused_tokens * token_bytes)})"
    facts = [
        f"one prompt: {counted(plan.num_reused_tokens, 'token')} reused{kept}",
        f"{plan.num_new_tokens:,} new",
        f"level {plan.level}",
        f"generation from position {plan.stop:,}",
    ]
    return " · ".join(facts)
