"""The example of docs/fidelity.md runs, and its table has the fields and defaults of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

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
