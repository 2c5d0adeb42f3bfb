"""Help by the command line: completion by click in the shell, the list of commands, and `promptcache why`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from promptcache.cli.app import COMMANDS, COMPLETE, GROUPS, app
from promptcache.diagnostics import CODES
from tests.cli.conftest import Command, data


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_with_the_script(folder: Path) -> None:
    """In bash itself, the script offers what may follow, prints nothing else, and leaves files to the shell."""
    (folder / "promptcache").write_text(f'#!/bin/sh\nexec {sys.executable} -m promptcache "$@"\n')
    (folder / "promptcache").chmod(0o755)
    test = f"""
eval "$({COMPLETE}=bash_source promptcache)"
for words in "promptcache ch" "promptcache run --temp" "promptcache new x --from tr" "promptcache check tr"; do
    COMP_WORDS=($words); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()
    _promptcache_completion promptcache
    echo "${{COMPREPLY[@]}}"
done
"""
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}

    done = subprocess.run(["bash", "-c", test], capture_output=True, text=True, check=True, env=env)

    assert done.stdout.splitlines() == ["check chat", "--temperature", "travel", ""]
    assert "Traceback" not in done.stderr


def test_the_list_of_commands_agrees_with_them() -> None:
    """Each command has the name and the first line of help that the list has for it."""
    loaded = [app.get_command(click.Context(app), name) for name in COMMANDS]

    assert {each.name: (each.help or "").partition("\n")[0] for each in loaded} == COMMANDS


def test_help_lists_the_commands_by_group(command: Command) -> None:
    """Each group has a heading, with its commands in their order below it."""
    words = command("--help").stdout.split("\n\n")[-len(GROUPS) :]

    for group, (title, commands) in zip(words, GROUPS.items(), strict=True):
        heading, *rows = group.splitlines()
        assert heading == f"{title}:"
        assert [row.split()[0] for row in rows if row[2] != " "] == [*commands]


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
