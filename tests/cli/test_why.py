"""`promptcache why`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

import promptcache
from promptcache.cli.why import GLOSSARY
from promptcache.diagnostics import CODES
from tests.cli.conftest import Command, data

ROOT = Path(__file__).parents[2]


def test_code_is_explained(command: Command) -> None:
    """A code is shown with its title, its meaning, an example without fences, and the fix without asterisks."""
    result = command("why", "PC401")

    assert result.exit_code == 0
    assert result.stdout.startswith("PC401  unknown module\n\nThere is no module with this name in this place.\n")
    assert '\n    <prompt schema="travel">\n' in result.stdout
    assert "\nFix. " in result.stdout
    assert "```" not in result.stdout


@pytest.mark.parametrize("code", ["401", " PC401 ", "error[PC401]:", "[pc401]", "warning[401]", "unknown module"])
def test_code_may_be_written_carelessly(command: Command, code: str) -> None:
    """Case, missing letters, spaces, the form of a message around a code and its title do not matter."""
    assert command("why", code).stdout == command("why", "PC401").stdout


def test_the_glossary_is_in_the_package() -> None:
    """The wheel holds the glossary where it is looked for first; in a checkout it is found in docs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]

    around = Path(promptcache.__file__).parents[1]
    assert (around / included["docs/glossary.md"], around / "docs" / "glossary.md") == GLOSSARY


@pytest.mark.parametrize("term", ["exact", "Repair", "stored bytes"])
def test_terms_are_explained(command: Command, term: str) -> None:
    """Terms that commands print are explained with the text of the glossary."""
    result = command("why", term)

    assert result.exit_code == 0
    assert term.lower() in result.stdout.splitlines()[0].lower().split(", ")
    assert json.loads(command("why", term, "--json").stdout)["meaning"]


def test_all_codes_are_listed_and_explained(command: Command) -> None:
    """Without a code there is a line for each, under the headings of their groups; with --json one or all come as data."""
    lines = command("why").stdout.splitlines()
    listed = data(command("why", "--json"))

    assert lines[0] == "XML and files"
    assert [line[2:7] for line in lines if line.startswith("  PC")] == list(CODES) == [each["code"] for each in listed]
    assert data(command("why", "PC302", "--json")) == next(x for x in listed if x["code"] == "PC302")
