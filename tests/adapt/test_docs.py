"""The example of docs/fidelity.md runs, and its table has the fields and defaults of the code."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from promptcache.adapt import AdaptReport, AdaptSettings, HeldOutFigures

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8").partition("\n## Adapters\n")[2].partition("\n## ")[0]


@pytest.mark.long
def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code of the page trains an adapter and loads it."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "schemas").symlink_to(ROOT / "schemas")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}

    exec(code, names)

    assert names["report"].num_steps == 2
    assert names["adapted"].fingerprint != names["engine"].fingerprint


def test_the_table_is_right() -> None:
    """The table names every field, and the defaults of the settings."""
    rows = dict(re.findall(r"^\| `(\w+)[^`]*` \| (.*) \|$", PAGE, re.MULTILINE))

    for kind in (AdaptReport, AdaptSettings, HeldOutFigures):
        assert [each.name for each in fields(kind) if f"`{each.name}`" not in rows[kind.__name__]] == []
    defaults = {each.name: each.default for each in fields(AdaptSettings) if each.default not in (MISSING, None)}
    told = dict(re.findall(r"`(\w+)` \(([^)]*)\)", rows["AdaptSettings"]))
    assert {name: float(value) for name, value in told.items()} == {
        name: float(value) for name, value in defaults.items() if isinstance(value, int | float)
    }
