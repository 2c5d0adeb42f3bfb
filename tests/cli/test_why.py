"""`promptcache why`."""

from __future__ import annotations

import pytest

from promptcache.diagnostics import CODES
from tests.cli.conftest import Command, data


def test_code_is_explained(command: Command) -> None:
    """A code is shown with its title, its meaning, an example without fences, and the fix without asterisks."""
    result = command("why", "PC401")

    assert result.exit_code == 0
    assert result.stdout.startswith("PC401  unknown module\n\nThere is no module with this name in this place.\n")
    assert '\n    <prompt schema="travel">\n' in result.stdout
    assert "\nFix. " in result.stdout
    assert "```" not in result.stdout


@pytest.mark.parametrize("code", ["401", " PC401 ", "error[PC401]:", "[pc401]", "warning[401]"])
def test_code_may_be_written_carelessly(command: Command, code: str) -> None:
    """Case, missing letters, spaces, and the form of a message around a code do not matter."""
    assert command("why", code).stdout == command("why", "PC401").stdout


def test_all_codes_are_listed_and_explained(command: Command) -> None:
    """Without a code there is a line for each, under the headings of their groups; with --json one or all come as data."""
    lines = command("why").stdout.splitlines()
    listed = data(command("why", "--json"))

    assert lines[0] == "XML and files"
    assert [line[2:7] for line in lines if line.startswith("  PC")] == list(CODES) == [each["code"] for each in listed]
    assert data(command("why", "PC302", "--json")) == next(x for x in listed if x["code"] == "PC302")
