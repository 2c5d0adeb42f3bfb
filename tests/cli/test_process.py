"""What only a process of its own can show."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("folder")


COMMANDS = [
    "check travel.xml",
    "layout travel.xml",
    "render prompts/miami.xml",
    "explain travel.xml",
    "diff travel.xml travel.xml",
    "why PC401",
]


def test_commands_without_a_model_load_neither_torch_nor_transformers() -> None:
    """Whatever needs no model does not wait for torch."""
    code = f"""
import sys
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
    """Whoever checks a sound document waits for the parsers and the solver, not for styles, templates or a model."""
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
    assert set(rooms.split()) <= {
        f"promptcache.{room}" for room in ("cli", "diagnostics", "demo", "language", "locks", "tokenizer")
    }


def test_module_is_the_command_and_colours_need_a_terminal() -> None:
    """`python -m promptcache` is the command; what is piped has no colours and the exit code of the findings."""
    words = [sys.executable, "-m", "promptcache", "check", "prompts/typo.xml"]

    result = subprocess.run(words, capture_output=True, text=True, check=False)

    assert result.returncode == 1
    assert result.stdout.startswith("error[PC401]: there is no module 'plam'")
    assert result.stderr == ""


def test_closed_pipe_is_quiet(folder: Path) -> None:
    """A reader that goes away ends the command without a word, as it ends any other."""
    reading, writing = os.pipe()
    os.close(reading)

    words = [sys.executable, "-m", "promptcache", "check", "travel.xml"]
    result = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)

    assert (result.returncode, result.stderr) == (141, "")


def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "promptcache", *words], capture_output=True, text=True, check=False, **options
    )


@pytest.mark.parametrize("words", ["check travel.xml", "check travel.xml --json", "why", "--help", "layout travel.xml"])
def test_a_full_disk_is_told(words: str) -> None:
    """What cannot be written ends the command with a message and the code of the environment, JSON or not."""
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "promptcache", *words.split()]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert (result.returncode, result.stderr) == (3, "error: No space left on device\n")


@pytest.mark.parametrize("stream", ["<&-", ">&-", "2>&-"])
@pytest.mark.parametrize("words", ["check travel.xml", "check - --json", "why PC401", "render prompts/miami.xml"])
def test_closed_streams_are_no_crash(words: str, stream: str) -> None:
    """A stream that was closed before we started reads as empty and takes what is written."""
    shell = f"{sys.executable} -m promptcache {words} {stream}"
    result = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)

    assert result.returncode == (1 if "-" in words.split() else 0)
    assert "Traceback" not in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("prompts", "this is a folder"),
        ("/dev/null", "this is a pipe or a device"),
        ("gone.xml", "there is no such file"),
    ],
)
def test_what_is_no_file_is_told(name: str, what: str) -> None:
    """A folder, a device and a file that is not there are told apart."""
    result = run("check", name)

    assert result.returncode == 3
    assert f"error[PC010]: {what}" in result.stdout


def test_a_pipe_beside_a_prompt_is_passed_by(folder: Path) -> None:
    """Looking for the schema of a prompt waits for no pipe that is called like one."""
    os.mkfifo(folder / "prompts" / "a.xml")

    result = run("check", "prompts/miami.xml", timeout=60)

    assert (result.returncode, result.stdout) == (0, "1 prompt and 1 schema checked: no findings\n")


@pytest.mark.parametrize("where", ["promptcache.cli.app", "promptcache.cli.check", "promptcache.language"])
def test_ctrl_c_while_loading_is_quiet(folder: Path, where: str) -> None:
    """Ctrl-C ends a command with 130 and without a word, also before there is a command."""
    code = f"""
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {where!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
sys.argv = ["promptcache", "check", "travel.xml"]
from promptcache.cli import main
main()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_ctrl_c_that_a_library_swallows_is_quiet(folder: Path) -> None:
    """Where a library that is being imported makes another error of Ctrl-C, the command still ends with 130."""
    code = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are told to ignore it
class Swallow:
    def find_spec(self, name, path=None, target=None):
        if name == "promptcache.cli.check":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                raise RecursionError("something else") from None
sys.meta_path.insert(0, Swallow())
sys.argv = ["promptcache", "check", "travel.xml"]
from promptcache.cli import main
main()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")


def test_any_locale_will_do(folder: Path) -> None:
    """Where the terminal has no Unicode, what it cannot show is replaced; files are UTF-8 wherever one is."""
    (folder / "é.xml").write_text('<schema name="é"><module name="ü" requires="ö"/></schema>', encoding="utf-8")
    env = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}

    result = run("check", "é.xml", env=env)

    assert result.returncode == 1
    assert "error[PC208]" in result.stdout
    assert result.stdout.isascii()


def on_terminal(*words: str, **env: str) -> tuple[int, str]:
    """Run a command on a terminal of 80 columns; return its exit code and all that the terminal got."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "promptcache", *words]
    child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, **env})
    os.close(theirs)
    got = b""
    with suppress(OSError):  # the terminal is gone when its last process is
        while piece := os.read(ours, 4096):
            got += piece
    os.close(ours)
    return child.wait(), got.decode().replace("\r\n", "\n")


STEERING = "\x9b2J\u202e\x7f"


@pytest.mark.parametrize(
    "words", ["layout bad.xml", "explain bad.xml", "render prompts/bad.xml", "check bad.xml prompts/bad.xml"]
)
def test_documents_do_not_steer_the_terminal(folder: Path, words: str) -> None:
    """Control characters that XML can hold reach no terminal, wherever text of a document is shown."""
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
        ("test travel.xml --prompts 2", r"travel\.xml.* \d+/\d+ "),
        ("bench plan --modules 300 --repeats 3", r"300 modules.* \d/4 "),
        ("run prompts/miami.xml --max-new-tokens 1", "loading the model"),
        ("warm travel.xml --store kept", "loading the model"),
    ],
)
def test_bars_are_for_terminals(folder: Path, words: str, shown: str) -> None:
    """What may take long shows how far it is on a terminal, and writes nothing of that where stderr is none."""
    code, got = on_terminal(*words.split(), TERM="xterm")
    piped = run(*words.split())

    assert (code, piped.returncode) == (0, 0)
    assert re.search(shown, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", got))
    assert not re.search(shown, piped.stdout + piped.stderr)
    assert "%|" not in got + piped.stderr  # nor any bar of another library


@pytest.mark.parametrize("columns", ["0", "-1", "many"])
def test_columns_that_are_none_lose_nothing(folder: Path, columns: str) -> None:
    """A terminal whose number of columns is nonsense shows what any other does."""
    code, got = on_terminal("check", "prompts/typo.xml", COLUMNS=columns, TERM="xterm")

    assert code == 1
    assert "there is no module 'plam' at the top level" in re.sub(r"\x1b\[[0-9;]*m", "", got)


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_done_without(folder: Path, env: dict[str, str]) -> None:
    """With NO_COLOR, and on a terminal that knows none, no colour is sent; else there are colours."""
    colours = re.compile(r"\x1b\[[0-9;]*3[0-7]")
    words = ["check", "prompts/typo.xml"]

    assert colours.search(on_terminal(*words, TERM="xterm-256color")[1])
    assert not colours.search(on_terminal(*words, **{"TERM": "xterm-256color", **env})[1])


@pytest.mark.parametrize("columns", ["1", "20"])
def test_narrow_terminals_lose_nothing(columns: str) -> None:
    """However few columns there are, findings are told whole."""
    result = run("check", "prompts/typo.xml", env={**os.environ, "COLUMNS": columns})

    assert "error[PC401]: there is no module 'plam' at the top level" in result.stdout
    assert run("--help", env={**os.environ, "COLUMNS": columns}).returncode == 0


@pytest.mark.parametrize(
    "words", [["chek"], ["check"], ["check", "--jsn", "x"], ["run", "x", "--seed", "y"], ["bench", "x"]]
)
def test_usage_mistakes_are_json_under_json(words: list[str]) -> None:
    """A command line that cannot be read ends with 2; with --json it says why as JSON."""
    plain, data = run(*words), run(*words, "--json")

    assert (plain.returncode, plain.stdout, data.returncode, data.stderr) == (2, "", 2, "")
    assert set(json.loads(data.stdout)) == {"error"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "prompts/miami.xml", "--temperature", "nan"], "--temperature nan: not a finite number"),
        (["run", "prompts/miami.xml", "--seed", "9" * 30], "Invalid value for '--seed'"),
        (["render", "prompts/miami.xml", "--arg", b"days=\xff"], "--arg: the text is not UTF-8"),
        (["check", "travel.xml", ""], "the name of a file is empty"),
    ],
)
def test_values_that_nothing_can_use_are_usage_mistakes(words: list[str | bytes], message: str) -> None:
    """A temperature that is no number, a seed beyond 64 bits and text that is no text end with 2 and a reason."""
    command = [sys.executable, "-m", "promptcache", *words]
    result = subprocess.run(command, capture_output=True, text=True, check=False)

    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
