"""How the reports of benchmarks are written.

Comes in: a report, and what it was measured on. Goes out: a table or one line of JSON, and perhaps a drawing. This file
measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from promptcache.cli.output import write_text

if TYPE_CHECKING:
    from promptcache.bench.report import Report

NO_MODEL = {"model": "none", "dtype": "none", "device": "none"}
"""The subject where no model computes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A report and what was measured.

    Attributes:
        subject: Name, dtype and device of the model.
        hardware: The machine and the versions, as `promptcache.bench.report` has them.
        drawing: The file to draw the report into.
    """

    report: Report
    subject: Mapping[str, str]
    hardware: Mapping[str, object]
    drawing: Path | None = None


def write_measured(measured: Measured, *, as_json: bool) -> None:
    """Write a report as a table for people, or as one line of JSON with every single run."""
    report = measured.report
    if as_json:
        data = {"bench": report.name, **measured.subject, "hardware": measured.hardware, "rows": report.rows}
        write_text(json.dumps(data) + "\n")
    else:
        from rich.table import Table

        from promptcache.cli.console import stdout

        table = Table(*report.columns, title=report.title)
        for cells in report.cells:
            table.add_row(*cells)
        stdout().print(table)
    if measured.drawing is not None:
        from promptcache.bench.plot import plot

        plot(report, measured.drawing)
