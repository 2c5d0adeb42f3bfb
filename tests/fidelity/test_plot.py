"""Labels of the plot can be read."""

from __future__ import annotations

import math
from itertools import combinations

import pytest


def test_labels_of_points_do_not_overlap() -> None:
    """However close the points are, each label is beside its point, and covers no other one."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from promptcache.fidelity.plot import keep_apart

    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    axes.set(xlim=(-50, 50), ylim=(-50, 50))
    points = [(0, 0), (0, 0), (0, 0), (0, 0), (1, 0), (0, 2), (4, 1), (5, 5)]
    labels = [axes.annotate("first-16", point, (1, 1), textcoords="offset points", size="xx-small") for point in points]

    keep_apart(figure, axes, labels)

    boxes = [label.get_window_extent() for label in labels]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert all(math.hypot(*label.get_position()) < 60 for label in labels)
