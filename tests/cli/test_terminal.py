"""Output on a terminal, with few columns, and errors in the words of a command line."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import pytest

from promptcache.cli import console
from promptcache.cli.app import app
from tests.cli.conftest import Command

pytestmark = pytest.mark.usefixtures("folder")

OnTerminal: TypeAlias = Callable[..., tuple[int, str]]


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> OnTerminal:
    """Runs a command on a terminal of 80 columns; returns its exit code and all that the terminal got."""

    def run(*words: str, streams: Sequence[str] = ("stdout", "stderr"), **env: str) -> tuple[int, str]:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        with ThreadPoolExecutor(1) as reader, monkeypatch.context() as patch:
            got = reader.submit(read_all, ours)
            with os.fdopen(theirs, "w", encoding="utf-8") as stream:
                for name in streams:
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
        ("run prompts/miami.xml --max-new-tokens 1", "encoding the modules"),
        ("warm travel.xml --store kept", "loading the model"),
        ("warm travel.xml --estimate", "travel, encodings"),
        ("collect desk.xml notes prompts", "reading files"),
    ],
)
def test_bars_are_for_terminals(command: Command, on_terminal: OnTerminal, words: str, shown: str) -> None:
    """Commands that may take long show bars on a terminal, and nothing yet if stdout or stderr is none."""
    Path("desk.xml").write_text('<schema name="desk"><collection name="notes" src="notes.jsonl"/></schema>')
    code, got = on_terminal(*words.split(), TERM="xterm")
    piped = command(*words.split())
    beside = on_terminal(*words.split(), streams=("stderr",), TERM="xterm")

    assert (code, piped.exit_code, beside[0]) == (0, 0, 0), got + piped.output
    assert not re.search(shown, beside[1])
    assert re.search(shown, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", got))
    assert not re.search(shown, piped.stdout + piped.stderr)
    assert "%|" not in got + piped.stderr  # nor any bar of another library


def test_pipes_get_lines_of_progress(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no terminal, a command that takes long writes a line now and then to stderr."""
    monkeypatch.setattr(console, "LINE_S", 0.0)

    result = command("test", "travel.xml")

    assert "travel.xml: 1 of 3\n" in result.stderr
    assert "of 3" not in result.stdout


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
