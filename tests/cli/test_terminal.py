"""Output on a terminal, with few columns, and errors in the words of a command line."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import pytest

from promptcache.cli.app import app
from tests.cli.conftest import Command

pytestmark = [pytest.mark.usefixtures("folder"), pytest.mark.long]

OnTerminal: TypeAlias = Callable[..., tuple[int, str]]


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> OnTerminal:
    """Runs a command on a terminal of 80 columns; returns its exit code and all that the terminal got."""
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")

    def run(*words: str, **env: str) -> tuple[int, str]:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        with ThreadPoolExecutor(1) as reader, monkeypatch.context() as patch:
            got = reader.submit(read_all, ours)
            with os.fdopen(theirs, "w", encoding="utf-8") as stream:
                for name in ("stdout", "stderr"):
                    patch.setattr(sys, name, stream)
                for name, value in env.items():
                    patch.setenv(name, value)
                with pytest.raises(SystemExit) as end:
                    app(list(words))
            return int(end.value.code or 0), got.result().decode().replace("\r\n", "\n")

    return run


def read_all(descriptor: int) -> bytes:
    """Read a terminal until its other end is closed."""
    got = b""
    with suppress(OSError):
        while piece := os.read(descriptor, 4096):
            got += piece
    os.close(descriptor)
    return got


STEERING = "\x9b2J\u202e\x7f"


@pytest.mark.parametrize("words", ["layout bad.xml", "render prompts/bad.xml", "check bad.xml prompts/bad.xml"])
def test_documents_do_not_steer_the_terminal(folder: Path, on_terminal: OnTerminal, words: str) -> None:
    """Control characters that XML allows never reach a terminal, in any output that shows document text."""
    text = f'<schema name="bad{STEERING}"><module name="a">{STEERING}<parameter name="p" length="99" default="{STEERING}"/></module></schema>'
    (folder / "bad.xml").write_text(text, encoding="utf-8")
    (folder / "prompts" / "bad.xml").write_text(
        f'<prompt schema="bad{STEERING}"><a q="{STEERING}"/>{STEERING}</prompt>'
        if words.startswith("check")
        else f'<prompt schema="bad{STEERING}"><a p="{STEERING}"/>{STEERING}</prompt>',
        encoding="utf-8",
    )

    code, got = on_terminal(*words.split())

    assert code == (1 if words.startswith("check") else 0)
    assert "bad" in got or words.startswith("render")
    assert not set(STEERING) - set("2J") & set(got)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("test travel.xml", r"travel\.xml.* \d+/\d+ "),
        ("run prompts/miami.xml --max-new-tokens 1", "loading the model"),
        ("warm travel.xml --store kept", "loading the model"),
    ],
)
def test_bars_are_for_terminals(command: Command, on_terminal: OnTerminal, words: str, shown: str) -> None:
    """Commands that may take long show progress on a terminal, and nothing if stderr is no terminal."""
    code, got = on_terminal(*words.split(), TERM="xterm")
    piped = command(*words.split())

    assert (code, piped.exit_code) == (0, 0), got + piped.output
    assert re.search(shown, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", got))
    assert not re.search(shown, piped.stdout + piped.stderr)
    assert "%|" not in got + piped.stderr  # nor any bar of another library


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_done_without(on_terminal: OnTerminal, env: dict[str, str]) -> None:
    """With NO_COLOR, and on a terminal that knows none, no colour is sent; else there are colours."""
    colours = re.compile(r"\x1b\[[0-9;]*3[0-7]")
    words = ["check", "prompts/typo.xml"]

    assert colours.search(on_terminal(*words, TERM="xterm-256color")[1])
    assert not colours.search(on_terminal(*words, **{"TERM": "xterm-256color", **env})[1])


@pytest.mark.parametrize("columns", ["0", "-1", "many", "1"])
def test_narrow_terminals_lose_nothing(command: Command, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    """However few columns there are, or if their number is nonsense, findings are printed whole."""
    monkeypatch.setenv("COLUMNS", columns)

    assert "error[PC401]: there is no module 'plam' at the top level" in command("check", "prompts/typo.xml").stdout
    assert command("--help").exit_code == 0


@pytest.mark.parametrize(
    "words", [["chek"], ["check"], ["check", "--jsn", "x"], ["run", "x", "--seed", "y"], ["bench", "x"]]
)
def test_usage_mistakes_are_json_under_json(command: Command, words: list[str]) -> None:
    """A command line that cannot be read ends with 2; with --json the reason is JSON."""
    plain, data = command(*words), command(*words, "--json")

    assert (plain.exit_code, plain.stdout, data.exit_code, data.stderr) == (2, "", 2, "")
    assert set(json.loads(data.stdout)) == {"error"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "prompts/miami.xml", "--temperature", "nan"], "--temperature nan: 0, or a finite number from"),
        (["run", "x", "--model", "missing", "--temperature", "1e-300"], "error: --temperature 1e-300: 0, or a finite"),
        (["check", "travel.xml", "--json", "--format", "github"], ""),
        (["run", "prompts/miami.xml", "--seed", "9" * 30], "Invalid value for '--seed'"),
        (["render", "prompts/miami.xml", "--arg", os.fsdecode(b"days=\xff")], "--arg: the text is not UTF-8"),
        (["check", "travel.xml", ""], "the name of a file is empty"),
    ],
)
def test_values_that_nothing_can_use_are_usage_mistakes(command: Command, words: list[str], message: str) -> None:
    """A temperature that is no number, a seed beyond 64 bits and bytes that are no text end with 2 and a reason."""
    result = command(*words)

    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("prompts", "this is a folder"),
        ("/dev/null", "this is a pipe or a device"),
        ("gone.xml", "there is no such file"),
    ],
)
def test_what_is_no_file_is_reported(command: Command, name: str, what: str) -> None:
    """A folder, a device and a missing file have different messages."""
    result = command("layout", name)

    assert result.exit_code == 3
    assert f"error[PC010]: {what}" in result.stderr
