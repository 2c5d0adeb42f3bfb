"""What a shell is offered."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from promptcache.cli.app import app
from promptcache.diagnostics import CODES

pytestmark = pytest.mark.usefixtures("folder")


def offered(line: str) -> list[str]:
    """The words that bash is offered for the last word of a line."""
    words = line.split(" ")
    env = {"_PROMPTCACHE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return CliRunner().invoke(app, [], prog_name="promptcache", env=env).stdout.split()


def test_commands_are_offered() -> None:
    """The first word is a command."""
    assert {"check", "layout", "render", "run", "why"} <= set(offered("promptcache "))


def test_files_of_the_right_kind_are_offered() -> None:
    """A schema is asked for: schemas are offered; a prompt: prompts; documents: both, one folder down at most."""
    schemas = ["broken.xml", "dead.xml", "support.xml", "travel.xml"]
    prompts = ["prompts/broken.xml", "prompts/lost.xml", "prompts/miami.xml", "prompts/typo.xml"]

    assert offered("promptcache layout ") == offered("promptcache diff travel.xml ") == schemas
    assert offered("promptcache run ") == offered("promptcache render p") == prompts
    assert sorted(offered("promptcache check ")) == sorted([*schemas, *prompts])


def test_what_has_been_typed_narrows_files(folder: Path) -> None:
    """A beginning narrows names, and a folder in it is where files are looked for."""
    assert offered("promptcache explain tr") == ["travel.xml"]
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
    """Mistakes are not told while someone types."""
    assert offered(f"promptcache run {prompt} --arg ") == []


def test_codes_are_offered() -> None:
    """`why` offers the codes, in the case in which one was begun."""
    codes = [code for code in CODES if code.startswith("PC50")]

    assert offered("promptcache why PC50") == codes
    assert offered("promptcache why pc50") == [code.lower() for code in codes]


def test_model_that_ships_is_offered() -> None:
    """A model is a name or a folder; the name is offered."""
    assert offered("promptcache layout travel.xml --model d") == ["demo"]
