"""docs/tutorial.md can be followed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tutorial import PAGE, follow


def test_the_tutorial_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands and code print what the page shows; if not, run `python -m tests.tutorial`."""
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")

    assert follow(page) == page
