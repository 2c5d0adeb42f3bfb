"""Fold the lines of a large layout: group neighbours into one line, and close inner lines, so that few are open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, groupby

from promptcache.diagnostics import counted, listed
from promptcache.picture.chart import ChartLine, LineKind
from promptcache.picture.notes import positions

_MAX_LINES = 120  # open at first
_MAX_SIBLINGS = 40
_MAX_NAMES = 12
_APART = (LineKind.ROOT, LineKind.SCAFFOLD, LineKind.PROMPT)


def folded(lines: Sequence[ChartLine]) -> tuple[ChartLine, ...]:
    """Return the lines, folded so that few are open; lines that a prompt uses stay open if they are few."""
    if sum(1 for line in lines for _ in line.everything) <= _MAX_LINES:
        return tuple(lines)
    grouped = _grouped(lines)
    depth = 1
    while depth < 16 and _num_open(grouped, depth + 1) <= _MAX_LINES:
        depth += 1
    return _closed(grouped, depth, has_plan=any(line.kind is LineKind.PROMPT for line in lines))


def _grouped(lines: Sequence[ChartLine]) -> tuple[ChartLine, ...]:
    """Group neighbours if there are too many; lines that a prompt uses and other lines are in separate groups."""
    lines = [replace(line, children=_grouped(line.children)) for line in lines]
    if len(lines) <= _MAX_SIBLINGS:
        return tuple(lines)
    step = next(size for size in _steps() if len(lines) <= size * _MAX_SIBLINGS)
    found: list[ChartLine] = []
    for (present, _), neighbours in groupby(lines, key=lambda line: (line.present, line.kind in _APART)):
        same = list(neighbours)
        alone = len(same) < 4 or (present and len(same) < len(lines) and len(same) <= _MAX_SIBLINGS)
        width = 1 if alone else step
        found += (_fold(same[index : index + width]) for index in range(0, len(same), width))
    return tuple(found)


def _steps() -> Iterator[int]:
    for power in count(1):
        yield from (10**power, 2 * 10**power, 5 * 10**power)


def _fold(lines: list[ChartLine]) -> ChartLine:
    if len(lines) == 1:
        return lines[0]
    start, stop = min(line.start for line in lines), max(line.stop for line in lines)
    names = [line.labels[-1] for line in lines]
    return ChartLine(
        kind=LineKind.FOLD,
        start=start,
        stop=stop,
        labels=(f"{names[0]} … {names[-1]}",),
        notes=(f"{counted(len(lines), 'part')}, folded", positions(start, stop), listed(names, _MAX_NAMES)),
        num_tokens=sum(each.num_tokens or 0 for line in lines for each in line.everything),
        children=folded(lines),
        present=any(line.present for line in lines),
        is_open=False,
    )


def _num_open(lines: Sequence[ChartLine], depth: int) -> int:
    inner = (line.children for line in lines if depth > 1 and line.kind is not LineKind.FOLD)
    return len(lines) + sum(_num_open(children, depth - 1) for children in inner)


def _closed(lines: Sequence[ChartLine], depth: int, *, has_plan: bool) -> tuple[ChartLine, ...]:
    """Close folds, and the lines below a depth."""
    found = []
    for line in lines:
        if line.kind is not LineKind.FOLD:
            is_used = has_plan and any(child.present for child in line.children)
            is_open = not line.children or depth > 1 or is_used
            line = replace(line, is_open=is_open, children=_closed(line.children, depth - 1, has_plan=has_plan))
        found.append(line)
    return tuple(found)
