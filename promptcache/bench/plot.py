"""Plot a benchmark: time or memory of every alternative against the size that varies, or quality against time.

A second size that varies gets a panel for each of its values. Needs matplotlib (`promptcache[plot]`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from promptcache.bench.harness import BenchReport
from promptcache.diagnostics import PromptCacheError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

Points: TypeAlias = tuple[tuple[float, float], ...]

_AXES = {
    "cached_tokens": "cached tokens",
    "new_tokens": "new tokens",
    "module_tokens": "tokens in each module",
    "requests": "live requests",
}
"""Sizes that may vary between the rows of a report, with the name of the axis. The first that varies is the x axis."""

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#9a7d0a")  # by Okabe and Ito
_MARKERS = "osD^vP*X"
_MAX_COLUMNS = 3
_POINT = 4  # pixels from the middle of a point to its edge
_PLACES = [
    (right * distance, up * distance)
    for distance in range(6, 40, 3)
    for up in (1, -1, 0)
    for right in (1, -1, 0)
    if right or up
]
"""Where the label of a point may be, nearest places first."""


def plot(report: BenchReport, path: Path, *, model: Mapping[str, str], hardware: Mapping[str, object]) -> None:
    """Plot a report into a file: svg, png or pdf by its name.

    Args:
        report: What was measured.
        path: Of the file.
        model: Name, dtype and device of the model, for the caption.
        hardware: What `harness.hardware` returned, for the caption.

    Raises:
        PromptCacheError: matplotlib is not installed, the format is unknown, or nothing varies.
    """
    axis = _axis(report)
    found = panels(report, axis)
    columns = min(len(found), _MAX_COLUMNS)
    rows = -(-len(found) // columns)
    figure = new_figure((3.2 + (5 if len(found) == 1 else 3.6 * columns), 1.2 + 3.6 * rows))
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes in grid.flat[len(found) :]:
        axes.set_visible(False)
    names = dict.fromkeys(name for curves in found.values() for name in curves)
    looks = dict(zip(names, point_looks(), strict=False))
    for axes, (setting, curves) in zip(grid.flat, found.items(), strict=False):
        for name, points in curves.items():
            axes.plot(*zip(*points, strict=True), label=name, markersize=5, **looks[name])
        _label(axes, report, axis, setting)
    lines = {line.get_label(): line for axes in grid.flat for line in axes.get_lines()}
    figure.legend(lines.values(), lines.keys(), loc="outside right upper", frameon=False)
    save(figure, path, report.title, hardware_caption(model, hardware))


class QualityPoint(NamedTuple):
    """Quality and cost of one setting.

    Attributes:
        name: Label of the point.
        cost: TTFT in percent of plain prefill's.
        distance, low, high: KL divergence from plain prefill in millinats, and its 95 % interval.
    """

    name: str
    cost: float
    distance: float
    low: float
    high: float


def plot_points(
    points: Sequence[QualityPoint],
    path: Path,
    title: str,
    *,
    model: Mapping[str, str],
    hardware: Mapping[str, object],
) -> None:
    """Plot points of quality against time with their intervals into an SVG file. Errors are those of `plot`."""
    figure = new_figure((7.5, 5))
    axes = figure.subplots()
    labels = []
    for point, look in zip(points, point_looks(), strict=False):
        spread = [[max(0.0, point.distance - point.low)], [max(0.0, point.high - point.distance)]]  # but for rounding
        axes.errorbar(
            point.cost,
            point.distance,
            spread,
            clip_on=False,
            elinewidth=1,
            capsize=3,
            markersize=6,
            color=look["color"],
            marker=look["marker"],
        )
        labels.append(label_point(axes, point.name, (point.cost, point.distance), look["color"], "small"))
    set_quality_axes(axes)
    axes.set_xlim(0, 1.25 * max(point.cost for point in points))  # room for the label of the last point
    keep_apart(figure, axes, labels)
    save(figure, path, title, hardware_caption(model, hardware), "svg")


def label_point(axes: Axes, name: str, place: tuple[float, float], colour: str, size: str = "xx-small") -> Annotation:
    return axes.annotate(
        name,
        place,
        _PLACES[0],
        textcoords="offset points",
        verticalalignment="center",
        fontsize=size,
        color=colour,
    )


def set_quality_axes(axes: Axes) -> None:
    axes.set_yscale("symlog", linthresh=10)  # logarithmic above 10 millinats, with a place for 0
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="TTFT, % of plain prefill", ylabel="KL divergence from plain prefill, millinats", xlim=0, ylim=0)
    axes.grid(visible=True, alpha=0.25)


def keep_apart(figure: Figure, axes: Axes, labels: Sequence[Annotation]) -> None:
    """Move each label to the nearest place around its point where it covers no point and no earlier label."""
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()  # sets the scales of the axes
    points = [axes.transData.transform(label.xy) for label in labels]
    taken = [Bbox([point - _POINT, point + _POINT]) for point in points]
    for label in labels:
        for right, up in _PLACES:
            label.set(position=(right, up), horizontalalignment="left" if right > 0 else "right" if right else "center")
            if not label.get_window_extent().count_overlaps(taken):
                break
        taken.append(label.get_window_extent())


def new_figure(size: tuple[float, float]) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PromptCacheError("plots need matplotlib: pip install 'promptcache[plot]'") from error
    return Figure(figsize=size, layout="constrained")


def save(figure: Figure, path: Path, title: str, caption: str, kind: str | None = None) -> None:
    """Save a figure in a format; None takes that of the file's name."""
    figure.suptitle(title, fontsize="medium")
    figure.supxlabel(caption, fontsize="x-small", color="dimgray")
    try:
        figure.savefig(path, format=kind)
    except ValueError as error:
        raise PromptCacheError(f"cannot draw '{path}': {error}") from error


def panels(report: BenchReport, axis: str) -> dict[str, dict[str, Points]]:
    """Return the medians of every alternative by size, for each setting beside the x axis."""
    others = [name for name in _AXES if name != axis and _varies_beside(report, axis, name)]
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in report.rows:
        curves = found.setdefault(", ".join(f"{row[name]:,} {_AXES[name]}" for name in others), {})
        for name, value in _values(row).items():
            curves.setdefault(name, []).append((row[axis], value))
    return {
        setting: {name: tuple(sorted(points)) for name, points in curves.items()} for setting, curves in found.items()
    }


def point_looks() -> Iterator[dict[str, str]]:
    """Yield a colour and a marker for each alternative; no pair occurs twice."""
    for turn, _ in enumerate(_MARKERS):
        for index, colour in enumerate(_COLOURS):
            yield {"color": colour, "marker": _MARKERS[(index + turn) % len(_MARKERS)]}


def _label(axes: Axes, report: BenchReport, axis: str, setting: str) -> None:
    """Label a panel with plain numbers, on the x axis at the sizes that were measured."""
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    sizes = sorted({row[axis] for row in report.rows})
    axes.set(yscale="log", xlabel=_AXES[axis], ylabel=_unit(report))
    if sizes[0] > 0:
        axes.set_xscale("log")
    else:  # linear from 0 to the next size
        axes.set_xscale("symlog", linthresh=sizes[1])
    axes.set_title(setting, fontsize="small")
    axes.set_xticks(sizes)
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
    axes.set_yticks([], minor=True)
    axes.tick_params(labelsize="small")
    axes.grid(visible=True, alpha=0.25)
    axes.label_outer()


def hardware_caption(model: Mapping[str, str], hardware: Mapping[str, object]) -> str:
    """Return the caption: the model and the machine."""
    machine = hardware.get("gpu") if model.get("device", "cpu") != "cpu" else hardware.get("processor")
    facts = [
        f"{model.get('model')}, {model.get('dtype')} on {model.get('device')}",
        str(machine or "unknown machine"),
        *([f"{hardware['threads']} thread{'s' * (hardware['threads'] != 1)}"] if "threads" in hardware else []),
        *(f"{name} {hardware[name]}" for name in ("torch", "transformers", "promptcache") if name in hardware),
    ]
    return " · ".join(facts)


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
    raise PromptCacheError("a plot needs a size that varies between the rows of the report")
