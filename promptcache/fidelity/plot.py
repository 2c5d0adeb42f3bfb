"""Plot of a schema's settings: quality against time. Needs matplotlib (`promptcache[plot]`)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path

from matplotlib.figure import Figure

from promptcache.diagnostics import counted
from promptcache.fidelity.report import Fidelity

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#9a7d0a")  # by Okabe and Ito
_MARKERS = "osD^vP*X<"  # one more than colours: no pair of both occurs twice


def plot_fidelity(fidelity: Fidelity, path: Path, *, model: Mapping[str, str], hardware: Mapping[str, object]) -> None:
    """Plot the distance of each setting from ordinary prefill, with its interval, against its time, into an SVG file.

    Args:
        fidelity: What was measured.
        path: Of the file.
        model: Name, dtype and device of the model, for the caption.
        hardware: What `promptcache.timing.hardware` returned, for the caption.
    """
    figure = Figure(figsize=(7.5, 5), layout="constrained")
    axes = figure.subplots()
    for setting, colour, marker in zip(fidelity.settings, cycle(_COLOURS), cycle(_MARKERS), strict=False):
        divergence = setting.divergence
        value, low, high = (1000 * each for each in (divergence.value, divergence.low, divergence.high))
        spread = [[max(0.0, value - low)], [max(0.0, high - value)]]  # below 0 by rounding only
        axes.errorbar(
            100 * setting.relative_ttft,
            value,
            spread,
            clip_on=False,
            elinewidth=1,
            capsize=3,
            linestyle="none",
            color=colour,
            marker=marker,
            label=setting.name,
        )
    axes.set_yscale("symlog", linthresh=10)  # logarithmic above 10 millinats, with a place for 0
    axes.yaxis.set_major_formatter("{x:g}")
    ylabel = "KL divergence from ordinary prefill, millinats"
    axes.set(xlabel="TTFT, % of ordinary prefill", ylabel=ylabel, xlim=0, ylim=0)
    axes.grid(visible=True, alpha=0.25)
    figure.legend(loc="outside right upper", fontsize="small")
    title = f"{fidelity.schema}: {counted(len(fidelity.prompts), 'prompt')}, mean and 95 % interval"
    figure.suptitle(title, fontsize="medium")
    machine = hardware["gpu"] if model["device"] != "cpu" else hardware["processor"]
    threads = counted(int(str(hardware["threads"])), "thread")
    versions = (f"{name} {hardware[name]}" for name in ("torch", "transformers", "promptcache"))
    loaded = f"{model['model']}, {model['dtype']} on {model['device']}"
    caption = " · ".join((loaded, str(machine), threads, *versions))
    figure.supxlabel(caption, fontsize="x-small", color="dimgray")
    figure.savefig(path, format="svg")
