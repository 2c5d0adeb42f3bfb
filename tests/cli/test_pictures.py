"""`promptcache layout` with pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command


def test_pictures_are_written_beside_the_tree(command: Command, folder: Path) -> None:
    """The tree is printed as ever, and both files hold the picture."""
    plain = command("layout", "travel.xml")

    result = command("layout", "travel.xml", "--svg", "travel.svg", "--html", "travel.html")

    assert (result.exit_code, result.stdout) == (0, plain.stdout)
    assert (folder / "travel.svg").read_text(encoding="utf-8").startswith("<svg")
    assert "<title>travel: layout</title>" in (folder / "travel.html").read_text(encoding="utf-8")


def test_a_prompt_is_drawn_into_the_layout(command: Command, folder: Path) -> None:
    """With a prompt, the picture tells what is reused."""
    result = command("layout", "travel.xml", "--prompt", "prompts/miami.xml", "--svg", "travel.svg")

    assert result.exit_code == 0
    assert "reused" in (folder / "travel.svg").read_text(encoding="utf-8")


@pytest.mark.usefixtures("folder")
def test_a_prompt_that_is_drawn_nowhere_is_a_mistake(command: Command) -> None:
    """A prompt without a file to draw into is refused as wrong usage."""
    result = command("layout", "travel.xml", "--prompt", "prompts/miami.xml")

    assert result.exit_code == 2
    assert "--svg FILE or --html FILE" in result.stderr


@pytest.mark.usefixtures("folder")
def test_a_faulty_prompt_is_reported(command: Command) -> None:
    """Faults of the prompt are findings."""
    result = command("layout", "travel.xml", "--prompt", "prompts/typo.xml", "--svg", "travel.svg")

    assert result.exit_code == 1
    assert "PC4" in result.stderr


@pytest.mark.usefixtures("folder")
def test_a_file_that_cannot_be_written_is_reported(command: Command) -> None:
    """A folder that is not there is a fault of the environment."""
    result = command("layout", "travel.xml", "--svg", "nowhere/travel.svg")

    assert result.exit_code == 3
