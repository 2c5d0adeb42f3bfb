"""Write the table of planted faults in docs/testing.md: `python -m tests.planted.table`."""

from __future__ import annotations

from pathlib import Path

import tests.planted.file_faults
import tests.planted.language_faults
import tests.planted.layout_faults
import tests.planted.runtime_faults  # noqa: F401 # registered where they are defined
from tests.planted.registry import FAULTS

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
START, STOP = "<!-- planted faults: made from tests/planted -->\n", "<!-- end of planted faults -->\n"


def table() -> str:
    """Return the table as markdown."""
    rows = "".join(f"| {fault.name} | {fault.law} |\n" for fault in FAULTS)
    return f"| planted fault | law that catches it |\n|---|---|\n{rows}"


def page() -> str:
    """Return the page with the current table."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(START)
    return before + START + table() + STOP + rest.split(STOP)[1]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
