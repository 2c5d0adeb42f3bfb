"""The sessions of docs/cli.md run."""

import re
import shlex
from pathlib import Path

import pytest

from promptcache.cli.app import COMMANDS
from promptcache.cli.cache import command as cache
from promptcache.cli.serve import command as serve
from promptcache.cli.settings import parameter_name
from promptcache.declared import declared
from promptcache.settings import EngineSettings, ServerSettings
from tests.cli.conftest import Command

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
DOCUMENTS = re.findall(r"^`([\w/]+\.xml)`[^\n]*:\n\n```xml\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
SESSIONS = re.findall(r"```console\n\$ promptcache ([^\n]+)\n", PAGE)


@pytest.fixture(autouse=True)
def _documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's own documents, in the working directory."""
    for name, text in DOCUMENTS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("words", SESSIONS)
def test_sessions_of_the_page_run(command: Command, words: str) -> None:
    """Every command of the page is one, and prints something."""
    result = command(*shlex.split(words))

    assert result.stdout or result.stderr
    assert "Usage:" not in result.stderr


def test_every_command_takes_both_forms_of_help(command: Command) -> None:
    """-h is --help, for groups and their commands."""
    names = [(), *((name,) for name in COMMANDS), *(("cache", name) for name in cache.commands)]

    for name in names:
        short, long = command(*name, "-h"), command(*name, "--help")
        assert (short.exit_code, short.stdout) == (0, long.stdout)
        assert "-h, --help" in short.stdout


def test_the_help_of_serve_has_every_option_once_under_the_heading_of_its_declaration(command: Command) -> None:
    """Options that are made from settings stand in the group that the setting states."""
    sections = re.split(r"\n\n(?=[A-Z][\w ]+:\n)", command("serve", "--help").stdout)
    listed = {
        heading: re.findall(r"^  (?:-h, )?--([\w-]+)", text, re.MULTILINE)
        for heading, _, text in (each.partition(":") for each in sections[1:])
    }
    expected = {
        parameter_name(name, each).replace("_", "-"): each.group
        for owner in (EngineSettings, ServerSettings)
        for name, each in declared(owner).items()
        if each.on_command_line
    }

    assert {name: heading for heading, names in listed.items() for name in names if name in expected} == expected
    assert sorted(name for names in listed.values() for name in names) == sorted(
        {each.opts[0].removeprefix("--") for each in serve.params} | {"help"}
    )
