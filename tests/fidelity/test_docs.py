"""The example of docs/testing.md runs as the page shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_the_example_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the page passes for the schema of the page, with the demo model."""
    section = PAGE.partition("\n## Fidelity\n")[2].partition("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    shop = re.findall(r"^```xml\n(<schema name=\"shop\">.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]
    (tmp_path / "shop.xml").write_text(shop, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)

    names["test_reuse_is_good_enough"]()
