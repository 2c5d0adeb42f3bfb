"""Plots of benchmarks: what every alternative takes, against the size that was varied.

Comes in: a report. Goes out: a file in whatever format its name asks for. Needs matplotlib (`promptcache[plot]`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcache.bench.harness import BenchReport
from promptcache.diagnostics import PromptCacheError

_AXES = {
    "cached_tokens": "cached tokens",
    "new_tokens": "new tokens",
    "module_tokens": "tokens in each module",
    "requests": "live requests",
}
"""What may vary between the rows of a report, with the name of its axis; the first that varies is the x axis."""


NOTHING_VARIES = "a plot needs an option given several times: --new, --module-tokens or --requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One alternative at one setting of everything that is not on the x axis."""

    label: str
    points: tuple[tuple[float, float], ...]


def plot(report: BenchReport, path: Path) -> None:
    """Draw a report into a file: svg, png or pdf by its name.

    Raises:
        PromptCacheError: matplotlib is not installed, the format is unknown, or nothing varies.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PromptCacheError("plots need matplotlib: pip install 'promptcache[plot]'") from error
    axis = _axis(report)
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for curve in curves(report, axis):
        axes.plot(*zip(*curve.points, strict=True), marker="o", markersize=4, label=curve.label)
    axes.set(xscale="log", yscale="log", xlabel=_AXES[axis], ylabel=_unit(report), title=report.title)
    axes.set_xticks(sorted({row[axis] for row in report.rows}))
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.6g}")
    axes.grid(visible=True, which="both", alpha=0.25)
    axes.legend(fontsize="small")
    try:
        figure.savefig(path)
    except ValueError as error:
        raise PromptCacheError(f"cannot draw '{path}': {error}") from error


def curves(report: BenchReport, axis: str) -> Iterator[Curve]:
    """Yield for every alternative, and every setting beside the x axis, its medians by size."""
    others = [name for name in _AXES if name != axis and _varies_beside(report, axis, name)]
    found: dict[tuple[str, ...], list[tuple[float, float]]] = {}
    for row in report.rows:
        setting = tuple(f"{row[name]:,} {_AXES[name]}" for name in others)
        for name, value in _values(row).items():
            found.setdefault((name, *setting), []).append((row[axis], value))
    for label, points in found.items():
        yield Curve(label=", ".join(label), points=tuple(sorted(points)))


def _varies_beside(report: BenchReport, axis: str, name: str) -> bool:
    """Return whether a setting takes several values at one place of the x axis; else it only follows the axis."""
    places = {(row.get(axis), row.get(name)) for row in report.rows}
    return len(places) > len({row.get(axis) for row in report.rows})


def _values(row: Mapping[str, Any]) -> dict[str, float]:
    """Return milliseconds, or MiB, of each alternative in a row."""
    if "seconds" in row:
        return {name: 1e3 * statistics.median(seconds) for name, seconds in row["seconds"].items()}
    return {name: max(grown, 1) / 2**20 for name, grown in row["grown_bytes"].items()}


def _unit(report: BenchReport) -> str:
    return "ms" if "seconds" in report.rows[0] else "MiB"


def _axis(report: BenchReport) -> str:
    for name in _AXES:
        if len({row[name] for row in report.rows if name in row}) > 1:
            return name
    raise PromptCacheError(NOTHING_VARIES)
