"""Shell completion of commands, options and arguments."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import get_completion_class

from promptcache.cli.app import COMMANDS, app
from promptcache.cli.completion import COMPLETE, NAME, complete
from promptcache.diagnostics import CODES
from promptcache.language import write_members
from tests.cli.conftest import Command

pytestmark = pytest.mark.usefixtures("folder")


def asked(line: str) -> list[str]:
    """Return the completions of bash for the last word of a line; bash splits words at every `=`."""
    words = [word for part in line.split(" ") for word in (re.findall(r"=|[^=]+", part) or [""])]
    env = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        shell = get_completion_class("bash")
        return shell(app, {}, NAME, COMPLETE).complete().split()


def offered(line: str) -> list[str]:
    """The words that bash is offered for the last word of a line."""
    return [word.removeprefix("plain,") for word in asked(line) if word.startswith("plain,")]


def test_commands_are_offered() -> None:
    """The first word is a command."""
    assert {"check", "layout", "render", "run", "why"} <= set(offered("promptcache "))


def test_files_of_the_right_kind_are_offered() -> None:
    """A schema is asked for: schemas are offered; a prompt: prompts; documents: both, one folder down at most."""
    schemas = ["broken.xml", "dead.xml", "support.xml", "travel.xml"]
    prompts = ["prompts/broken.xml", "prompts/lost.xml", "prompts/miami.xml", "prompts/typo.xml"]

    assert offered("promptcache layout ") == offered("promptcache layout travel.xml --against ") == schemas
    assert offered("promptcache run ") == offered("promptcache render p") == prompts
    assert sorted(offered("promptcache check ")) == sorted([*schemas, *prompts])


def test_benchmarks_of_own_models_are_offered() -> None:
    """`bench` has the benchmarks that measure a user's model."""
    assert sorted(offered("promptcache bench ")) == ["decode", "ttft"]


def test_what_has_been_typed_narrows_files(folder: Path) -> None:
    """A beginning narrows names, and a folder in it is where files are looked for."""
    assert offered("promptcache layout tr") == ["travel.xml"]
    assert offered("promptcache run prompts/mi") == ["prompts/miami.xml"]
    assert offered("promptcache run ./prompts/mi") == ["./prompts/miami.xml"]
    assert offered(f"promptcache run {folder}/prompts/mi") == [f"{folder}/prompts/miami.xml"]
    assert offered("promptcache run nowhere/") == []


def test_names_that_a_shell_could_misread_are_not_offered(folder: Path) -> None:
    """A file whose name holds more than plain characters is left to the shell itself."""
    (folder / "$(x).xml").write_text('<schema name="x"/>')

    assert offered("promptcache layout $") == []


def test_parameters_of_the_prompt_are_offered(folder: Path) -> None:
    """--arg offers the parameters of the prompt on the line, by their shortest names."""
    (folder / "two.xml").write_text(
        '<schema name="two"><module name="a"><parameter name="x" length="1"/></module>'
        '<module name="b"><parameter name="x" length="1"/><parameter name="y" length="1"/></module></schema>'
    )
    (folder / "prompts" / "two.xml").write_text('<prompt schema="two"><a/><b/></prompt>')

    assert offered("promptcache run prompts/miami.xml --arg ") == ["days=", "hotel="]
    assert offered("promptcache render prompts/two.xml --arg ") == ["a.x=", "b.x=", "y="]
    assert offered("promptcache render prompts/two.xml --arg b") == ["b.x="]
    assert offered("promptcache run prompts/two.xml --schema two.xml --arg y=1 --arg b") == ["b.x="]


@pytest.mark.parametrize("prompt", ["gone.xml", "-", "prompts/lost.xml", "prompts/broken.xml", "prompts/typo.xml"])
def test_prompt_that_cannot_be_used_offers_nothing(prompt: str) -> None:
    """Completion writes no error messages."""
    assert offered(f"promptcache run {prompt} --arg ") == []


@pytest.fixture
def collections(folder: Path) -> Path:
    """A schema with a collection in a file, and one without a file; returns the file."""
    (folder / "desk.xml").write_text(
        '<schema name="desk"><module name="box"><collection name="notes" src="notes.jsonl"/></module>'
        '<collection name="own"><module name="a">A</module></collection></schema>'
    )
    return folder / "notes.jsonl"


def test_collections_and_members_are_offered(collections: Path) -> None:
    """`collect` completes collections with a file, and the members that can be taken out of it."""
    names = ["wifi", "window", "été", "door"]
    collections.write_text("".join(write_members(dict.fromkeys(names, "A note."))), encoding="utf-8")

    assert offered("promptcache collect desk.xml ") == ["box/notes"]
    assert offered("promptcache collect desk.xml box/notes --remove ") == sorted(names)
    assert offered("promptcache collect desk.xml /box/notes a.txt --remove door --remove wi") == ["wifi", "window"]
    assert offered("promptcache collect desk.xml own --remove ") == []
    assert offered("promptcache collect gone.xml notes --remove ") == []
    assert offered("promptcache collect broken.xml ") == []


def test_many_members_are_offered_in_steps(collections: Path) -> None:
    """Of many members the shell gets what can come next, so that it neither waits nor inserts a wrong beginning."""
    names = ["doc-7", *(f"doc-{number}" for number in range(700, 1000)), "index"]
    collections.write_text("".join(write_members(dict.fromkeys(names, "A note."))), encoding="utf-8")
    line = "promptcache collect desk.xml box/notes --remove "

    assert offered(line) == ["d", "i"]
    assert offered(f"{line}d") == ["doc-7", "doc-8", "doc-9"]
    assert offered(f"{line}doc-70") == [f"doc-{number}" for number in range(700, 710)]
    assert offered(f"{line}in") == ["index"]


def test_codes_are_offered() -> None:
    """`why` offers the codes, in the case in which one was begun."""
    codes = [code for code in CODES if code.startswith("PC50")]

    assert offered("promptcache why PC50") == codes
    assert offered("promptcache why pc50") == [code.lower() for code in codes]


def test_model_that_ships_is_offered() -> None:
    """A model is a name or a folder; the name is offered."""
    assert offered("promptcache layout travel.xml --model d") == ["demo"]


def test_choices_of_a_parameter_are_offered(folder: Path) -> None:
    """After `name=`, the parameter's choices are completed; bash splits words at `=` and gets only the values."""
    (folder / "fare.xml").write_text(
        '<schema name="fare"><module name="seat">'
        '<parameter name="class" length="4" type="choice" choices="first|second"/>'
        '<parameter name="row" length="4" type="int"/></module></schema>'
    )
    (folder / "prompts" / "fare.xml").write_text('<prompt schema="fare"><seat/></prompt>')

    assert offered("promptcache run prompts/fare.xml --arg ") == ["class=", "row="]
    assert offered("promptcache run prompts/fare.xml --arg class=") == ["first", "second"]
    assert offered("promptcache run prompts/fare.xml --arg class=s") == ["second"]
    assert offered("promptcache run prompts/fare.xml --arg seat.class=s") == []
    assert offered("promptcache run prompts/fare.xml --arg row=") == []
    assert offered("promptcache run prompts/fare.xml --arg row=1 --arg class=f") == ["first"]


def test_parameters_are_offered_with_what_they_take(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """zsh and fish also show a parameter's length, type, choices and pattern."""
    (folder / "fare.xml").write_text(
        '<schema name="fare"><parameter name="class" length="4" type="choice" choices="first|second"/>'
        '<parameter name="row" length="1" type="int"/><parameter name="x" length="2" pattern="[a-z]+"/></schema>'
    )
    (folder / "prompts" / "fare.xml").write_text('<prompt schema="fare"/>')
    monkeypatch.setenv("COMP_WORDS", "promptcache run prompts/fare.xml --arg ")
    monkeypatch.setenv("COMP_CWORD", "4")

    told = get_completion_class("zsh")(app, {}, NAME, COMPLETE).complete()

    assert told.splitlines()[1::3] == ["class=", "row=", "x="]
    assert told.splitlines()[2::3] == [
        "at most 4 tokens, one of first, second",
        "at most 1 token, a whole number",
        "at most 2 tokens, matches [a-z]+",
    ]


def test_files_are_left_to_the_shell_where_none_fits() -> None:
    """Without a known document, the shell completes file names; a model may be a folder."""
    assert asked("promptcache layout nowhere/") == ["file,nowhere/"]
    assert asked("promptcache layout travel.xml --model ./x") == ["dir,./x"]


def test_the_list_of_commands_agrees_with_them() -> None:
    """Each command has the name and the first line of help that the list has for it."""
    loaded = [app.get_command(click.Context(app), name) for name in COMMANDS]

    assert {each.name: (each.help or "").partition("\n")[0] for each in loaded} == COMMANDS


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_scripts_are_printed(command: Command, shell: str) -> None:
    """The script of each shell calls the command with the variable that asks for completions."""
    result = command("--show-completion", shell)

    assert result.exit_code == 0
    assert COMPLETE in result.stdout


@pytest.mark.parametrize(
    ("shell", "file", "start"),
    [
        ("bash", ".local/share/promptcache/completion.bash", ".bashrc"),
        ("zsh", ".local/share/promptcache/completion.zsh", ".zshrc"),
        ("fish", ".config/fish/completions/promptcache.fish", None),
    ],
)
def test_a_shell_is_set_up_once(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, shell: str, file: str, start: str | None
) -> None:
    """The shell's start file reads the script, and a second installation adds nothing."""
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("SHELL", f"/bin/{shell}")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)

    results = [command("--install-completion") for _ in range(2)]

    assert [result.exit_code for result in results] == [0, 0]
    assert COMPLETE in (folder / file).read_text()
    if start is not None:
        assert (folder / start).read_text().split() == ["source", str(folder / file)]


@pytest.mark.parametrize("variables", [{}, {"COMP_WORDS": "promptcache"}, {"COMP_WORDS": "x", "COMP_CWORD": "z"}])
def test_a_call_like_no_shell_gets_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], variables: dict[str, str]
) -> None:
    """Without a shell's variables there is nothing to complete, and nothing is printed."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(SystemExit) as end:
        complete(app, "bash_complete")

    assert (end.value.code, *capsys.readouterr()) == (2, "", "")


@pytest.mark.process
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_with_the_script(folder: Path) -> None:
    """In bash itself, with its own way of cutting words, the script ends in the words that it inserts."""
    (folder / "fare.xml").write_text(
        '<schema name="fare"><parameter name="class" length="4" type="choice" choices="first|second"/></schema>'
    )
    (folder / "prompts" / "fare.xml").write_text('<prompt schema="fare"/>')
    script = get_completion_class("bash")(app, {}, NAME, COMPLETE).source()
    test = f"""{script}
COMP_WORDS=(promptcache run prompts/fare.xml --arg class = s); COMP_CWORD=6
_promptcache_completion promptcache s =
echo "${{COMPREPLY[@]}}"
"""
    (folder / "bin").mkdir()
    (folder / "bin" / "promptcache").write_text(f'#!/bin/sh\nexec {sys.executable} -m promptcache "$@"\n')
    (folder / "bin" / "promptcache").chmod(0o755)
    env = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}

    done = subprocess.run(["bash", "-c", test], capture_output=True, text=True, check=True, env=env)

    assert done.stdout.split() == ["second"]
