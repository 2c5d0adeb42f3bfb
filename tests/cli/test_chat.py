"""`promptcache chat`, with the model that ships in the package."""

import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from select import select

import psutil
import pytest

import promptcache.cli.chat as chat
from tests.cli.conftest import Command

pytestmark = pytest.mark.usefixtures("_city")

CHAT = ("chat", "prompts/city.xml", "--device", "cpu", "--max-new-tokens", "8", "--temperature", "0")
DISH = "What is the best dish of Miami?\n"
BEACH = "What is the best beach of Miami?\n"


@pytest.fixture
def _city(folder: Path) -> None:
    """A prompt without a question."""
    (folder / "prompts" / "city.xml").write_text('<prompt schema="travel"><plan days="3"/><miami/></prompt>')


def test_answers_are_those_of_one_prompt(command: Command) -> None:
    """Each line from a pipe is a question, and the first answer is that of `run`; stdout has the answers only."""
    ran = command("run", "prompts/miami.xml", "--device", "cpu", "--max-new-tokens", "8", "--temperature", "0")

    asked = command(*CHAT, stdin=f"Plan it.\n\n{DISH}")
    from_prompt = command(*("prompts/miami.xml" if word == CHAT[1] else word for word in CHAT), stdin=DISH)

    assert (asked.exit_code, asked.stderr) == (0, "")
    assert asked.stdout.startswith(ran.stdout)
    assert asked.stdout.count("\n") == 2
    assert from_prompt.stdout == asked.stdout


def test_usage_shows_what_an_answer_reused(command: Command) -> None:
    """/usage accounts for every token of the last answer: modules, history and new tokens."""
    result = command(*CHAT, stdin=f"/usage\n{DISH}/usage\n{BEACH}/usage\n")

    assert result.stderr.startswith("error: /usage: nothing was answered yet\n")
    first, second = result.stderr.split("\nTTFT ")[:2]
    assert re.search(r"modules +\d+ tokens  \(root\) \d+ miss, plan \d+ miss, miami \d+ miss\n", first)
    assert re.search(r"history +0 tokens", first)
    assert re.search(r"miami \d+ hit\nhistory +[1-9]\d* tokens", second)


def test_a_saved_chat_goes_on(command: Command) -> None:
    """A chat that was saved and loaded gives the answers of one that was not; /rewind forgets the last question."""
    whole = command(*CHAT, stdin=f"{DISH}{BEACH}/save two.json\n/rewind\n/save one.json\n")
    turns = [json.loads(Path(name).read_text())["turns"] for name in ("one.json", "two.json")]
    options = [word for word in CHAT if word != "prompts/city.xml"]
    alone = ["chat", "--max-new-tokens", "2"]

    assert [[turn["question"] for turn in each] for each in turns] == [[DISH.strip()], [DISH.strip(), BEACH.strip()]]
    assert turns[0][0] == turns[1][0]
    assert whole.stderr.splitlines() == [
        "saved 2 questions to two.json",
        "forgot 1 question; the chat has 1 question",
        "saved 1 question to one.json",
    ]
    later = command(*options, "--load", "one.json", stdin=BEACH).stdout
    assert (later != "", whole.stdout.endswith(later)) == (True, True)
    assert command(*alone, stdin="Hello.\n/save plain.json\n").exit_code == 0  # the model alone has no schema
    assert command(*alone, "--load", "plain.json", stdin="Hello.\n").stdout.strip()


def test_a_question_can_have_several_lines(command: Command, folder: Path) -> None:
    """A block is one question as it is; one of blanks is none. A space makes a question of a command."""
    asked = '"""\n/usage\n\n  last\n"""\n """ \n    x = 1\n\n"""\n"""\n  \n"""\n /help\n'

    saved = command("chat", "--max-new-tokens", "1", stdin=f'{asked}/save talk.json\n"""\nend')
    ended = command("chat", "--max-new-tokens", "1", stdin='"""\nend')

    assert (saved.exit_code, ended.exit_code) == (0, 0)
    assert ended.stdout != ""  # the end of the input ends a block
    questions = [turn["question"] for turn in json.loads((folder / "talk.json").read_text())["turns"]]
    assert questions == ["/usage\n\n  last", "    x = 1\n", "/help"]


@pytest.mark.parametrize(
    ("line", "message", "code"),
    [
        ("/usages", "there is no command '/usages'; did you mean '/usage'?", 2),
        *((f"/rewind {number}", "a number of questions is expected; the chat has 0", 2) for number in ("1", "0", "x")),
        pytest.param(f"/rewind {'9' * 5000}", "a number of questions is expected; the chat has 0", 2, id="digits"),
        ("/save", "the name of a file is expected", 2),
        ("/save travel.xml", "travel.xml is what is read", 2),
        ("/save gone/x.json", "No such file or directory: gone", 3),
        ("a" * 9000, "forget the last questions", 1),
    ],
)
def test_an_error_is_shown_and_the_chat_goes_on(command: Command, line: str, message: str, code: int) -> None:
    """The error of a command or a question has its fix. Later questions are answered; the exit code tells of it."""
    result = command(*CHAT, stdin=f"{line}\n{DISH}/quit\nnot asked\n")

    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert (result.exit_code, result.stdout.count("\n")) == (code, 1)


def test_questions_are_utf_8(command: Command) -> None:
    """A question with other bytes is refused; the others are answered."""
    result = command(*CHAT, stdin=b"caf\xe9?\n" + DISH.encode())

    assert result.stderr == "error: byte 0xe9 of the input is not UTF-8; convert the question to UTF-8\n"
    assert (result.exit_code, result.stdout.count("\n")) == (2, 1)


def test_ctrl_c_in_a_pipe_ends_the_command(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a terminal has a prompt to go back to."""

    def interrupt(_text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(chat, "write_text", interrupt)

    assert command(*CHAT, stdin=DISH).exit_code == 130


class _Terminal:
    """A chat on a terminal of its own, which sends it signals as a terminal does. Its first answer waits for one."""

    _CODE = """
import fcntl, signal, sys, termios, time
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background inherit that it is ignored
import promptcache.cli.chat as chat
from promptcache.cli import main
write = chat.write_text
def write_and_wait(text):
    chat.write_text = write
    write(text)
    time.sleep(60)
chat.write_text = write_and_wait
main()
"""

    def __init__(self, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", self._CODE, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm"},
        )
        os.close(theirs)
        self.got = ""

    def type(self, keys: str) -> None:
        """Type keys."""
        os.write(self._ours, keys.encode())

    def wait_for(self, pattern: str) -> str:
        """Return the output up to a pattern, which must come within half a minute, and forget it."""
        stop = time.monotonic() + 30
        while (found := re.search(pattern, self.got)) is None:
            assert select([self._ours], [], [], max(0.0, stop - time.monotonic()))[0], self.got
            try:
                piece = os.read(self._ours, 4096)
            except OSError:
                raise AssertionError(f"the command has ended: {self.got}") from None
            self.got += piece.decode(errors="replace")
        seen, self.got = self.got[: found.end()], self.got[found.end() :]
        return seen

    def close(self) -> None:
        """End the command."""
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


PROMPT = r"\x1b\[\?2004h> "  # the prompt, after the code that turns bracketed paste on


@pytest.mark.slow
def test_a_terminal_has_keys(folder: Path, request: pytest.FixtureRequest) -> None:
    """Ctrl-C stops an answer or clears a line, earlier lines come back, a paste is one entry, and Ctrl-D ends."""
    terminal = _Terminal(*CHAT)
    request.addfinalizer(terminal.close)
    terminal.wait_for(rf"chat over travel; /help shows .*\n.*{PROMPT}")
    terminal.type("One?\r")
    terminal.wait_for(r"One\?\s+\x1b\[\?2004l\s+\w+")
    terminal.type("\x03")
    terminal.wait_for(rf"stopped; the chat is as before this question\s+{PROMPT}")
    terminal.type("half a line")
    terminal.wait_for("half a line")
    while psutil.Process(terminal.process.pid).status() != psutil.STATUS_SLEEPING:  # readline sees no signal before
        time.sleep(0.01)
    terminal.type("\x03")
    terminal.wait_for(PROMPT)
    terminal.type("Two?\r")
    terminal.wait_for(PROMPT)
    terminal.type("\x1b[A\r")  # the line before
    terminal.wait_for(PROMPT)
    terminal.type("\x1b[200~Three\rfour?\x1b[201~\r")
    terminal.wait_for(PROMPT)
    terminal.type("/rewind 9\r")
    terminal.wait_for(f"error: .*the chat has 3\\s+{PROMPT}")
    terminal.type("/save talk.json\r")
    terminal.wait_for(PROMPT)
    terminal.type("\x04")

    assert terminal.process.wait(30) == 0
    questions = [turn["question"] for turn in json.loads((folder / "talk.json").read_text())["turns"]]
    assert questions == ["Two?", "Two?", "Three\nfour?"]
