"""Plot a report of `python -m benchmarks quality`: quality against time."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.quality.ways import way_named
from promptcache.bench.harness import BenchReport
from promptcache.bench.plot import (
    hardware_caption,
    keep_apart,
    label_point,
    new_figure,
    point_looks,
    save,
    set_quality_axes,
)


def plot_quality(report: BenchReport, path: Path, *, model: Mapping[str, str], hardware: Mapping[str, object]) -> None:
    """Plot a report of the quality benchmark: for each set the distance from plain prefill against TTFT, way by way.

    A line connects the settings of `repair`, in the order of the report. Arguments and errors are those of `plot`.
    """
    figure = new_figure((9, 5.5))
    axes = figure.subplots()
    labels = []
    for (name, points), look in zip(quality_curves(report).items(), point_looks(), strict=False):
        costs, distances = [cost for cost, _, _ in points], [distance for _, distance, _ in points]
        axes.scatter(costs, distances, s=25, label=name, clip_on=False, color=look["color"], marker=look["marker"])
        line = [(cost, distance) for cost, distance, way in points if way_named(way).repair is not None]
        axes.plot([cost for cost, _ in line], [distance for _, distance in line], color=look["color"])
        for cost, distance, way in points:
            labels.append(label_point(axes, way, (cost, distance), look["color"]))
    set_quality_axes(axes)
    figure.legend(loc="outside right upper", frameon=False)
    keep_apart(figure, axes, labels)
    save(figure, path, report.title, hardware_caption(model, hardware))


def quality_curves(report: BenchReport) -> dict[str, list[tuple[float, float, str]]]:
    """Return for each set the cost in percent of plain prefill's TTFT, the distance in millinats, and the way."""
    plain = {_set_name(row): statistics.median(row["ttft_s"]) for row in report.rows if row["way"] == "plain"}
    curves: dict[str, list[tuple[float, float, str]]] = {}
    for row in report.rows:
        if row["way"] != "plain":
            name = _set_name(row)
            cost = 100 * statistics.median(row["ttft_s"]) / plain[name]
            distance = 1000 * row["beside"]["plain"]["divergence"]["value"]
            curves.setdefault(name, []).append((cost, distance, row["way"]))
    return curves


def _set_name(row: Mapping[str, Any]) -> str:
    tokens = row["module_tokens"]
    return row["set"] if tokens is None else f"{row['set']}, {tokens} tokens"
