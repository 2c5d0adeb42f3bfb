"""What a benchmark reports: a table for people, and the same as data.

Comes in: measurements. Goes out: rows. This file measures nothing.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil

import promptcache


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One benchmark's outcome.

    Attributes:
        name: Of the benchmark, as the command line has it.
        title: What the cells mean, with their unit.
        columns: Of the table.
        cells: Rows of the table, as long as `columns`.
        rows: The same with every single run, for machines.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    rows: tuple[Mapping[str, Any], ...]


def machine() -> dict[str, object]:
    """Return what a reader of figures has to know where no model computed: the processor, and what ran."""
    return {
        "processor": _processor_name(),
        "cores": psutil.cpu_count(),
        "python": platform.python_version(),
        "promptcache": promptcache.__version__,
    }


def hardware() -> dict[str, object]:
    """Return the same where one did: also threads, versions, and the GPU where there is one."""
    import torch
    import transformers

    return {
        **machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _processor_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - not a file of the user's
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return "unknown"
