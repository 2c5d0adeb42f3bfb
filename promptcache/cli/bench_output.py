"""How the reports of benchmarks are written.

Comes in: a report, and what it was measured on. Goes out: a table, one JSON line, and perhaps a drawing. This file
measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcache.cli.output import write_text

if TYPE_CHECKING:
    from promptcache.bench.report import Report

NO_MODEL = {"model": "none", "dtype": "none", "device": "none"}
"""The subject where no model computes."""


def write_measured(report: Report, subject: Mapping[str, str], drawing: Path | None = None) -> None:
    """Write what was measured on a model; `subject` has its name, dtype and device."""
    from promptcache.bench.report import hardware

    _write(report, {**subject, "hardware": hardware()})
    if drawing is not None:
        from promptcache.bench.plot import plot

        plot(report, drawing)


def write_without_model(report: Report) -> None:
    """Write what was measured where no model computes."""
    from promptcache.bench.report import machine

    _write(report, {**NO_MODEL, "hardware": machine()})


def _write(report: Report, subject: dict[str, Any]) -> None:
    from rich.table import Table

    from promptcache.cli.console import stdout

    table = Table(*report.columns, title=report.title)
    for cells in report.cells:
        table.add_row(*cells)
    stdout().print(table)
    write_text(json.dumps({"bench": report.name, **subject, "rows": report.rows}) + "\n")
