"""Tests that need a process of their own: start-up, signals, closed pipes and streams, the locale."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("folder")


def run(*words: str, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a command in a process of its own, with text on pipes if nothing else is said."""
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.run([sys.executable, "-m", "promptcache", *words], check=False, **{**piped, **options})


COMMANDS = [
    "check travel.xml",
    "layout travel.xml",
    "render prompts/miami.xml",
    "layout travel.xml --against travel.xml",
    "why PC401",
]


def test_commands_without_a_model_load_neither_torch_nor_transformers() -> None:
    """Neither commands that need no model, nor those that serve, import torch before there is a model."""
    code = f"""
import sys
import promptcache.cli.serve, promptcache.scale.ray_proxy
from promptcache.cli.app import app
for command in {COMMANDS}:
    try:
        app(command.split())
    except SystemExit as end:
        assert end.code == 0, command
print([name for name in ("torch", "transformers") if name in sys.modules])
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert output.endswith("\n[]\n")


def test_check_loads_only_what_it_needs() -> None:
    """Checking a valid document imports the parsers and the solver, but no styles, templates or model."""
    code = """
import sys
sys.modules["rnc2rng"] = None  # lxml loads it where it is installed, which our dependencies never do
from promptcache.cli.app import app
try:
    app(["check", "travel.xml", "prompts/miami.xml"])
except SystemExit as end:
    assert end.code == 0
loaded = {name.partition(".")[0] for name, module in sys.modules.items() if module and not name.startswith("_")}
print(*sorted(loaded - sys.stdlib_module_names))
print(*sorted(name for name in sys.modules if name.startswith("promptcache.") and name.count(".") == 1))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    _, others, rooms = done.stdout.splitlines()

    pysat = {"pysat", "pysolvers", "pycard", "pyformula", "six"}
    assert set(others.split()) <= {"promptcache", "click", "lxml", "cython_runtime", *pysat}
    light = "atomic cli codecs declared diagnostics language lazy locks options settings"
    assert {room.removeprefix("promptcache.") for room in rooms.split()} <= {*light.split()}


def test_closed_pipe_is_quiet(folder: Path) -> None:
    """A reader that goes away ends the command without a word, as it ends any other."""
    reading, writing = os.pipe()
    os.close(reading)

    result = run("check", "travel.xml", stdout=writing)
    os.close(writing)

    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.parametrize("words", ["check travel.xml --json", "--help"])
def test_a_full_disk_is_reported(words: str) -> None:
    """If stdout cannot be written, the command ends with a message and the code of the environment."""
    with Path("/dev/full").open("w") as full:
        result = run(*words.split(), stdout=full)

    assert (result.returncode, result.stderr) == (3, "error: No space left on device\n")


@pytest.mark.parametrize(
    ("words", "stream", "code"),
    [("check - --json", "<&-", 1), ("check travel.xml", ">&-", 0), ("render prompts/miami.xml", "2>&-", 0)],
)
def test_closed_streams_are_no_crash(words: str, stream: str, code: int) -> None:
    """A stream that is closed from the start reads as empty, and accepts writes."""
    shell = f"{sys.executable} -m promptcache {words} {stream}"
    result = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)

    assert result.returncode == code
    assert "Traceback" not in result.stdout + result.stderr


def test_a_command_with_a_model_ends_in_silence() -> None:
    """Libraries that count what was not freed, as triton does, have nothing to say at the end."""
    pytest.importorskip("triton", reason="triton is not installed")

    result = run("run", "prompts/miami.xml")

    assert result.returncode == 0
    assert re.fullmatch(r"reused \d+ tokens, .*\n", result.stderr)


LOCALES = [
    {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "latin-1"},
]


def test_a_terminal_without_unicode_will_do(folder: Path) -> None:
    """On a terminal without Unicode, other characters are replaced; files are always UTF-8."""
    (folder / "e.xml").write_text('<schema name="é"><module name="ü" requires="ö"/></schema>', encoding="utf-8")
    ours, theirs = pty.openpty()

    result = run("check", "e.xml", stdout=theirs, stderr=theirs, env={**os.environ, **LOCALES[1]})
    got = os.read(ours, 4096)
    os.close(theirs)
    os.close(ours)

    assert result.returncode == 1
    assert b"error[PC208]" in re.sub(rb"\x1b\[[0-9;]*m", b"", got)
    assert got.isascii()


@pytest.mark.parametrize("locale", LOCALES[::2], ids=["C", "latin-1"])
def test_output_to_a_pipe_is_utf_8(locale: dict[str, str]) -> None:
    """Documents on pipes are UTF-8, whatever the locale is, and so are messages."""
    text = '<schema name="s">\n  <module name="a">Zürich, 京都.</module>\n</schema>\n'.encode()
    env = {**os.environ, **locale}

    good, bad = (run("fmt", "-", input=each, env=env, text=False) for each in (text, text[:-2]))

    assert (good.returncode, good.stdout, good.stderr) == (0, text, b"")
    assert (bad.returncode, "PC001" in bad.stderr.decode()) == (1, True)


@pytest.mark.slow
def test_questions_from_a_pipe_are_utf_8(folder: Path) -> None:
    """`chat` reads and writes UTF-8 on pipes in a locale without it."""
    words = ("chat", "--max-new-tokens", "1", "--device", "cpu")
    entered, env = "Zürich?\n/save talk.json\n".encode(), {**os.environ, **LOCALES[0]}

    done = run(*words, input=entered, env=env, text=False)

    assert (done.returncode, done.stderr) == (0, b"saved 1 question to talk.json\n")
    assert "Zürich?" in (folder / "talk.json").read_text(encoding="utf-8")


HOOKED = """
import atexit, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are told to ignore it
class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == {where!r}:
            {hook}
sys.meta_path.insert(0, Hook())
sys.argv = ["promptcache", "check", "prompts/typo.xml"]
from promptcache.cli import main
main()
"""


SWALLOW = """try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                raise RecursionError("something else") from None"""


ENDS = {
    "ctrl-c at the start": ("promptcache.cli.app", "raise KeyboardInterrupt", 130, ""),
    "ctrl-c in a room": ("promptcache.language", "raise KeyboardInterrupt", 130, ""),
    "ctrl-c that a library swallows": ("promptcache.cli.check", SWALLOW, 130, ""),
    "exit functions": ("promptcache.cli.check", 'atexit.register(print, "exit function")', 1, "\nexit function\n"),
}


@pytest.mark.parametrize(("where", "hook", "code", "told"), ENDS.values(), ids=ENDS)
def test_commands_end_in_silence(where: str, hook: str, code: int, told: str) -> None:
    """Ctrl-C ends a command with 130 and without a word, also before there is one; exit functions of libraries run."""
    program = HOOKED.format(where=where, hook=hook)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (result.returncode, result.stderr) == (code, "")
    assert result.stdout.endswith(told) if told else result.stdout == ""
