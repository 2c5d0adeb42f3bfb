"""How the reports of benchmarks are written.

Comes in: a report, and what it was measured on. Goes out: a table, one JSON line, and perhaps a drawing. This file
measures nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcache.cli.output import write_text

if TYPE_CHECKING:
    from promptcache.bench.report import Report


def write_measured(report: Report, model: str, dtype: str, drawing: Path | None = None) -> None:
    """Write what was measured on a model."""
    from promptcache.bench.report import hardware

    _write(report, {"model": model, "dtype": dtype, "hardware": hardware()})
    if drawing is not None:
        from promptcache.bench.plot import plot

        plot(report, drawing)


def write_without_model(report: Report) -> None:
    """Write what was measured where no model computes."""
    from promptcache.bench.report import machine

    _write(report, {"model": "none", "dtype": "none", "hardware": machine()})


def _write(report: Report, subject: dict[str, Any]) -> None:
    from rich.table import Table

    from promptcache.cli.console import stdout

    table = Table(*report.columns, title=report.title)
    for cells in report.cells:
        table.add_row(*cells)
    stdout().print(table)
    write_text(json.dumps({"bench": report.name, **subject, "rows": report.rows}) + "\n")
