"""The pictures in docs/layout.md are what its commands draw."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from promptcache.cli.app import app

PROJECT = Path(__file__).parents[2]
COMMANDS = re.findall(
    r"^\$ promptcache (layout .*)$", (PROJECT / "docs" / "layout.md").read_text(encoding="utf-8"), re.MULTILINE
)


@pytest.mark.parametrize("words", COMMANDS)
def test_the_pictures_of_the_page_are_up_to_date(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of the page draws the file in docs/images; if this fails, run the command."""
    monkeypatch.chdir(PROJECT)
    *command, image = shlex.split(words)
    drawn = tmp_path / "drawn.svg"

    result = CliRunner().invoke(app, [*command, str(drawn)])

    assert result.exit_code == 0
    assert drawn.read_text(encoding="utf-8") == (PROJECT / image).read_text(encoding="utf-8")
