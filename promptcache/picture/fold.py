"""Fold the rows of a large layout: group neighbours into one row and close inner rows, so that few rows are open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, groupby

from promptcache.diagnostics import counted, listed
from promptcache.picture.chart import ChartRow, RowKind
from promptcache.picture.notes import positions

_MAX_ROWS = 120  # open at first
_MAX_SIBLINGS = 40
_MAX_NAMES = 12
_APART = (RowKind.ROOT, RowKind.PROMPT)


def folded(rows: Sequence[ChartRow]) -> tuple[ChartRow, ...]:
    """Return the rows, folded so that few are open; rows that a prompt uses stay open if they are few."""
    if sum(1 for row in rows for _ in row.everything) <= _MAX_ROWS:
        return tuple(rows)
    grouped = _grouped(rows)
    depth = 1
    while depth < 16 and _num_open(grouped, depth + 1) <= _MAX_ROWS:
        depth += 1
    return _closed(grouped, depth, has_plan=any(row.kind is RowKind.PROMPT for row in rows))


def _grouped(rows: Sequence[ChartRow]) -> tuple[ChartRow, ...]:
    """Group neighbours if there are too many; rows that a prompt uses and other rows are in separate groups."""
    rows = [replace(row, children=_grouped(row.children)) for row in rows]
    if len(rows) <= _MAX_SIBLINGS:
        return tuple(rows)
    step = next(size for size in _steps() if len(rows) <= size * _MAX_SIBLINGS)
    found: list[ChartRow] = []
    for (present, _), neighbours in groupby(rows, key=lambda row: (row.present, row.kind in _APART)):
        same = list(neighbours)
        alone = len(same) < 4 or (present and len(same) < len(rows) and len(same) <= _MAX_SIBLINGS)
        width = 1 if alone else step
        found += (_fold(same[index : index + width]) for index in range(0, len(same), width))
    return tuple(found)


def _steps() -> Iterator[int]:
    for power in count(1):
        yield from (10**power, 2 * 10**power, 5 * 10**power)


def _fold(rows: list[ChartRow]) -> ChartRow:
    if len(rows) == 1:
        return rows[0]
    start, stop = min(row.start for row in rows), max(row.stop for row in rows)
    names = [row.labels[-1] for row in rows]
    return ChartRow(
        kind=RowKind.FOLD,
        start=start,
        stop=stop,
        labels=(f"{names[0]} … {names[-1]}",),
        notes=(f"{counted(len(rows), 'part')}, folded", positions(start, stop), listed(names, _MAX_NAMES)),
        num_tokens=sum(each.num_tokens or 0 for row in rows for each in row.everything),
        children=folded(rows),
        present=any(row.present for row in rows),
        is_open=False,
    )


def _num_open(rows: Sequence[ChartRow], depth: int) -> int:
    inner = (row.children for row in rows if depth > 1 and row.kind is not RowKind.FOLD)
    return len(rows) + sum(_num_open(children, depth - 1) for children in inner)


def _closed(rows: Sequence[ChartRow], depth: int, *, has_plan: bool) -> tuple[ChartRow, ...]:
    """Close folds, and the rows below a depth."""
    found = []
    for row in rows:
        if row.kind is not RowKind.FOLD:
            is_used = has_plan and any(child.present for child in row.children)
            is_open = not row.children or depth > 1 or is_used
            row = replace(row, is_open=is_open, children=_closed(row.children, depth - 1, has_plan=has_plan))
        found.append(row)
    return tuple(found)
