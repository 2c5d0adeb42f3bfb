"""Shell completion by click: commands, options and their choices; files are left to the shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from promptcache.cli.app import COMMANDS, COMPLETE, GROUPS, app
from tests.cli.conftest import Command


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
