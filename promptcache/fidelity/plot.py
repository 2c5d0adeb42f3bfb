"""Plot of a schema's settings: quality against time. Needs matplotlib (`promptcache[plot]`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from promptcache.diagnostics import counted
from promptcache.fidelity.report import Fidelity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Annotation

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#9a7d0a")  # by Okabe and Ito
_MARKERS = "osD^vP*X"
_POINT = 4  # pixels from the middle of a point to its edge
_PLACES = [
    (right * distance, up * distance)
    for distance in range(6, 40, 3)
    for up in (1, -1, 0)
    for right in (1, -1, 0)
    if right or up
]
"""Where the label of a point may be, nearest places first."""


def plot_fidelity(fidelity: Fidelity, path: Path, *, model: Mapping[str, str], hardware: Mapping[str, object]) -> None:
    """Plot the distance of each setting from plain prefill, with its interval, against its time, into an SVG file.

    Args:
        fidelity: What was measured.
        path: Of the file.
        model: Name, dtype and device of the model, for the caption.
        hardware: What `promptcache.timing.hardware` returned, for the caption.
    """
    figure = Figure(figsize=(7.5, 5), layout="constrained")
    axes = figure.subplots()
    labels = []
    for setting, (colour, marker) in zip(fidelity.settings, _looks(), strict=False):
        cost, divergence = 100 * setting.relative_ttft, setting.divergence
        value, low, high = (1000 * each for each in (divergence.value, divergence.low, divergence.high))
        spread = [[max(0.0, value - low)], [max(0.0, high - value)]]  # below 0 by rounding only
        style: dict[str, Any] = {"elinewidth": 1, "capsize": 3, "markersize": 6, "color": colour, "marker": marker}
        axes.errorbar(cost, value, spread, clip_on=False, **style)
        place: dict[str, Any] = {
            "textcoords": "offset points",
            "verticalalignment": "center",
            "fontsize": "small",
            "color": colour,
        }
        labels.append(axes.annotate(setting.name, (cost, value), _PLACES[0], **place))
    axes.set_yscale("symlog", linthresh=10)  # logarithmic above 10 millinats, with a place for 0
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="TTFT, % of plain prefill", ylabel="KL divergence from plain prefill, millinats", xlim=0, ylim=0)
    axes.set_xlim(0, 125 * max(setting.relative_ttft for setting in fidelity.settings))  # room for the last label
    axes.grid(visible=True, alpha=0.25)
    keep_apart(figure, axes, labels)
    title = f"{fidelity.schema}: {counted(len(fidelity.prompts), 'prompt')}, mean and 95 % interval"
    figure.suptitle(title, fontsize="medium")
    figure.supxlabel(_caption(model, hardware), fontsize="x-small", color="dimgray")
    figure.savefig(path, format="svg")


def keep_apart(figure: Figure, axes: Axes, labels: Sequence[Annotation]) -> None:
    """Move each label to the nearest place around its point where it covers no point and no earlier label."""
    figure.draw_without_rendering()  # sets the scales of the axes
    points = [axes.transData.transform(label.xy) for label in labels]
    taken = [Bbox([point - _POINT, point + _POINT]) for point in points]
    for label in labels:
        for right, up in _PLACES:
            label.set(position=(right, up), horizontalalignment="left" if right > 0 else "right" if right else "center")
            if not label.get_window_extent().count_overlaps(taken):
                break
        taken.append(label.get_window_extent())


def _looks() -> Iterator[tuple[str, str]]:
    """Yield a colour and a marker for each setting; no pair occurs twice."""
    for turn, _ in enumerate(_MARKERS):
        for index, colour in enumerate(_COLOURS):
            yield colour, _MARKERS[(index + turn) % len(_MARKERS)]


def _caption(model: Mapping[str, str], hardware: Mapping[str, object]) -> str:
    machine = hardware["gpu"] if model["device"] != "cpu" else hardware["processor"]
    threads = counted(int(str(hardware["threads"])), "thread")
    versions = (f"{name} {hardware[name]}" for name in ("torch", "transformers", "promptcache"))
    return " · ".join((f"{model['model']}, {model['dtype']} on {model['device']}", str(machine), threads, *versions))
