"""docs/cli.md shows what the commands print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from promptcache.cli.app import COMMANDS
from promptcache.cli.bench import command as bench
from promptcache.cli.cache import command as cache
from tests.cli.conftest import Command

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
DOCUMENTS = re.findall(r"^`([\w/]+\.xml)`[^\n]*:\n\n```xml\n(.*?)```", PAGE, re.DOTALL | re.MULTILINE)
SESSIONS = re.findall(r"```console\n\$ promptcache ([^\n]+)\n(.*?)```", PAGE, re.DOTALL)
NUMBER = re.compile(r"\d+(\.\d+)?")


@pytest.fixture(autouse=True)
def _documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's own documents, in the working directory."""
    for name, text in DOCUMENTS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")


@pytest.mark.parametrize(("words", "printed"), SESSIONS, ids=[words for words, _ in SESSIONS])
def test_page_shows_what_is_printed(command: Command, words: str, printed: str) -> None:
    """Every session of the page is what its command prints; answers depend on weights, and times on the machine."""
    result = command(*shlex.split(words))

    if words.startswith("run") and result.exit_code == 0:
        usage = printed.splitlines()[-1]
        assert NUMBER.sub("N", result.stderr.strip()) == NUMBER.sub("N", usage)
    else:
        assert f"{result.stdout}{result.stderr}".strip() == printed.strip()


def test_page_names_every_option(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """No option is missing from the page."""
    monkeypatch.setenv("COLUMNS", "200")
    names = [(name,) for name in COMMANDS if name not in ("bench", "cache")]
    names += [("cache", name) for name in cache.commands]
    pages = [command(*name, "--help").stdout for name in names]

    options = set(re.findall(r"--[a-z-]+", "".join(pages))) - {"--help"}
    assert {option for option in options if option not in PAGE} == set()


def test_every_command_takes_both_forms_of_help(command: Command) -> None:
    """-h is --help, for groups and their commands."""
    names = [(), *((name,) for name in COMMANDS), *(("cache", name) for name in cache.commands)]
    names += [("bench", name) for name in bench.commands]

    for name in names:
        short, long = command(*name, "-h"), command(*name, "--help")
        assert (short.exit_code, short.stdout) == (0, long.stdout)
        assert "-h, --help" in short.stdout
