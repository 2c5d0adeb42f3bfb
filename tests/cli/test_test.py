"""`promptcache test` runs the examples of a schema, and the laws."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from promptcache.cli import test as test_command
from tests.cli.conftest import Command

GREETING = """\
<schema name="greeting">
  <module name="hello">Hello <parameter name="name" length="2" required="true"/>!</module>
  <example name="a friend" valid="{valid}"><prompt schema="greeting"><hello name="{name}"/></prompt></example>
</schema>
"""


def write(folder: Path, *, valid: str = "true", name: str = "Ada") -> None:
    """Write a schema with one example."""
    (folder / "greeting.xml").write_text(GREETING.format(valid=valid, name=name), encoding="utf-8")


def test_examples_and_laws_are_counted(command: Command, folder: Path) -> None:
    """A schema whose examples and laws hold passes, in one line."""
    write(folder)
    result = command("test", "greeting.xml", "--prompts", "3")
    assert result.exit_code == 0
    assert result.stdout.startswith("greeting.xml: 1 example, 1")
    assert result.stdout.endswith(" laws: passed\n")


def test_slots_that_hold_nothing_are_told(command: Command, folder: Path) -> None:
    """If a required slot is too short for all its choices, no prompt can be drawn, and the message names the slot."""
    slot = (
        '<parameter name="pace" length="1" required="true" type="choice" choices="as fast as possible|not too fast"/>'
    )
    (folder / "s.xml").write_text(f'<schema name="s">{slot}</schema>', encoding="utf-8")

    result = command("test", "s.xml", "--prompts", "3")

    assert result.exit_code == 1
    assert "    no prompts could be drawn: no choice of 'pace' fits into its slot of length 1\n" in result.stdout


def test_without_prompts_only_examples_are_checked(command: Command, folder: Path) -> None:
    """--prompts 0 leaves the laws out."""
    write(folder)
    assert command("test", "greeting.xml", "--prompts", "0").stdout == "greeting.xml: 1 example: passed\n"


def test_a_wrong_example_is_a_finding(command: Command, folder: Path) -> None:
    """An example whose validity is declared wrongly fails the test, with its code."""
    write(folder, valid="false")
    result = command("test", "greeting.xml", "--prompts", "0")
    assert result.exit_code == 1
    assert "PC311" in result.stdout


def test_an_argument_too_long_for_its_slot_fails(command: Command, folder: Path) -> None:
    """Examples are planned with a tokenizer, so lengths are checked, which `check` cannot."""
    write(folder, name="somebody whose name is long")
    assert command("check", "greeting.xml").exit_code == 0

    result = command("test", "greeting.xml", "--prompts", "0")

    assert result.exit_code == 1
    assert result.stdout.startswith("greeting.xml:3: example 'a friend' failed\n    PC501 ")
    assert result.stdout.endswith("greeting.xml: 1 example: 1 failed\n")


def test_a_broken_law_is_told_with_its_prompt(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken law is reported with the fault and a prompt; the other laws are still checked."""
    from promptcache.testing import laws

    def broken(case: object) -> None:
        """Break every law."""
        raise laws.BrokenLaw("as planned")

    law = laws.Law(name="nothing holds", over=laws.Over.PROMPT, check=broken)
    monkeypatch.setattr(laws, "LAWS", (law, laws.LAWS[0]))
    write(folder)

    result = command("test", "greeting.xml", "--prompts", "2", "--json")

    (tested,) = json.loads(result.stdout)["schemas"]
    assert result.exit_code == 1
    assert [(test["name"], (test["failure"] or "").split(" ")[:4]) for test in tested["tests"]] == [
        ("a friend", [""]),
        ("nothing holds", ["as", "planned\nprompt:", "<prompt", 'schema="greeting">a</prompt>\npositions:']),
        (laws.LAWS[1].name, [""]),
    ]


def test_a_law_without_prompts_fails(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no prompt can be drawn for a law, the law fails without a traceback."""
    from hypothesis.errors import Unsatisfiable

    from promptcache.testing import laws

    def undrawn(subject: object) -> None:
        """Draw no prompts."""
        raise Unsatisfiable("none found")

    monkeypatch.setattr(laws, "LAWS", (laws.Law(name="undrawn", over=laws.Over.SCHEMA, check=undrawn),))
    write(folder)

    result = command("test", "greeting.xml")

    assert result.exit_code == 1
    assert "law 'undrawn' failed\n    no prompts could be drawn: Unsatisfiable: none found\n" in result.stdout


@pytest.mark.process
def test_nothing_is_left_where_it_runs(folder: Path) -> None:
    """The laws write nothing into the working directory."""
    write(folder)
    before = sorted(folder.iterdir())
    words = [sys.executable, "-m", "promptcache", "test", "greeting.xml", "--prompts", "2"]

    inherited = {name: value for name, value in os.environ.items() if name != "HYPOTHESIS_STORAGE_DIRECTORY"}
    subprocess.run(words, check=True, env={**inherited, "XDG_CACHE_HOME": str(folder / "prompts")})

    assert sorted(folder.iterdir()) == before


def test_a_user_without_a_home_can_test(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a home folder, Hypothesis keeps its files in the temporary folder."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HYPOTHESIS_STORAGE_DIRECTORY", "")  # so that what is set here is taken back
    monkeypatch.delenv("HYPOTHESIS_STORAGE_DIRECTORY")
    monkeypatch.delitem(sys.modules, "hypothesis")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)

    test_command.find_hypothesis("laws need Hypothesis", "--prompts 0")

    assert Path(os.environ["HYPOTHESIS_STORAGE_DIRECTORY"]).is_relative_to(tempfile.gettempdir())


def test_without_hypothesis_laws_are_refused(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Hypothesis, the command names the package to install, and examples can still be checked."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    write(folder)

    assert command("test", "greeting.xml").exit_code == 3
    assert command("test", "greeting.xml", "--prompts", "0").exit_code == 0


def test_a_prompt_is_refused(command: Command, folder: Path) -> None:
    """Prompts are for `check`."""
    result = command("test", "prompts/miami.xml")
    assert (result.exit_code, result.stderr) == (2, "error: prompts/miami.xml is a prompt; test takes schemas\n")


def test_a_file_that_cannot_be_read_is_no_finding(command: Command, folder: Path) -> None:
    """A missing file ends with the environment's code, as with `check`."""
    assert command("test", "nowhere.xml", "--prompts", "0").exit_code == 3
