"""`promptcache new` writes schemas that work as they are."""

import json
import shlex
import tomllib
from pathlib import Path

import pytest

import promptcache
from promptcache.cli.documents import SHIPPED_FOLDERS, shipped_schemas
from tests.cli.conftest import Command

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("origin", [None, *shipped_schemas()])
def test_what_is_written_has_no_findings(command: Command, folder: Path, origin: str | None) -> None:
    """A new schema and its prompt pass check and are laid out as fmt does it, under the new name."""
    words = ["--from", origin] if origin else []
    result = command("new", "mine", *words)
    assert (result.exit_code, result.stdout) == (0, "")

    assert command("check", "mine.xml", "mine-prompt.xml").stdout == "1 schema and 1 prompt checked: no findings\n"
    assert command("fmt", "--check", "mine.xml", "mine-prompt.xml").exit_code == 0
    assert command("test", "mine.xml").exit_code == 0


def test_output_says_where(command: Command, folder: Path) -> None:
    """-o names the schema's file; the prompt is written to the same folder, and folders are created."""
    result = command("new", "R&D", "-o", "deep/down/lab.xml", "--json")

    assert json.loads(result.stdout) == {"schema": "R&D", "files": ["deep/down/lab.xml", "deep/down/lab-prompt.xml"]}
    found = command("check", "deep/down/lab-prompt.xml")
    assert (found.exit_code, found.stdout) == (0, "1 prompt and 1 schema checked: no findings\n")


def test_the_next_command_is_quoted_for_the_shell(command: Command, folder: Path) -> None:
    """A name with signs of the shell can be copied from the output. It names a model where the demo model cannot answer."""
    last = command("new", "R&D").stderr.splitlines()[-1]

    assert shlex.split(last) == ["try:", "promptcache", "run", "R&D-prompt.xml"]
    assert "'" in last
    assert "run mine-prompt.xml --model " in command("new", "mine", "--from", "persona").stderr  # beyond the demo model


def test_the_wheel_has_the_schemas() -> None:
    """The build puts the schemas where `new` looks for them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]

    around = Path(promptcache.__file__).parents[1]
    assert (around / included["schemas"], around / "schemas") == SHIPPED_FOLDERS
