"""`promptcache test` runs the examples of a schema, its pairs of choices, its own tests, and with a model one law."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from promptcache import Engine
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


def test_slots_that_hold_nothing_are_told(command: Command, folder: Path) -> None:
    """If a required slot is too short for all its choices, no prompt can be planned, and the message names the slot."""
    attributes = 'length="1" required="true" type="choice" choices="as fast as possible|not too fast"'
    (folder / "s.xml").write_text(f'<schema name="s"><parameter name="pace" {attributes}/></schema>', encoding="utf-8")

    result = command("test", "s.xml")

    assert result.exit_code == 1
    assert "combination 'no modules' failed\n    no text was found for the slot 'pace' of length 1" in result.stdout


def test_answers_need_a_model(command: Command, folder: Path) -> None:
    """What an example expects in an answer is tested with a model, and named without one."""
    dishes = [("stone crab", "true"), ("onion soup", "wrong")]
    examples = "".join(
        f'<example name="{name}" expect="{dish}"><prompt schema="s">What is the best dish of Miami?</prompt></example>'
        for dish, name in dishes
    )
    system = "<system>The best dish of Miami is stone crab.</system>"
    (folder / "s.xml").write_text(f'<schema name="s">{system}{examples}</schema>', encoding="utf-8")

    without = command("test", "s.xml")
    result = command("test", "s.xml", "--model", "demo", "--prompts", "1")

    assert (without.exit_code, result.exit_code) == (0, 1)
    assert without.stdout == "s.xml: 2 examples, 1 combination: passed; 2 answers not tested without --model\n"
    assert "answer 'wrong' failed\n    expect='onion soup' is not in the answer 'The best dish" in result.stdout
    assert result.stdout.endswith("s.xml: 2 examples, 1 combination, 2 answers, 1 law: 1 failed\n")


def test_collections_that_an_application_fills_need_a_file(command: Command, folder: Path) -> None:
    """Without members, prompts that need some cannot be tested, and both commands say how to declare them."""
    schema = '<schema name="s"><collection name="notes" min="1"{}/>Answer.</schema>'
    (folder / "s.xml").write_text(schema.format(""), encoding="utf-8")

    tested = command("test", "s.xml", "--model", "demo", "--prompts", "1")
    measured = command("fidelity", "s.xml", "--prompts", "1")
    assert tested.exit_code == 1
    assert "combination 'notes' failed\n    a prompt names at least 1 of collection 'notes'" in tested.stdout
    assert all('src="notes.jsonl"' in each for each in (tested.stdout, measured.stderr))

    (folder / "s.xml").write_text(schema.format(' src="notes.jsonl"'), encoding="utf-8")
    (folder / "notes.jsonl").write_text('{"name": "17", "text": "A note."}\n', encoding="utf-8")
    assert command("test", "s.xml", "--model", "demo", "--prompts", "2").exit_code == 0
    (folder / "notes.jsonl").unlink()
    assert command("check", "s.xml").exit_code == 0


def test_an_argument_too_long_for_its_slot_fails(command: Command, folder: Path) -> None:
    """Examples are planned with a tokenizer, so lengths are checked, which `check` cannot."""
    write(folder, name="somebody whose name is long")
    assert command("check", "greeting.xml").exit_code == 0

    result = command("test", "greeting.xml")

    assert result.exit_code == 1
    assert result.stdout.startswith("greeting.xml:3: example 'a friend' failed\n    PC501 ")
    assert result.stdout.endswith("greeting.xml: 1 example, 2 combinations: 1 failed\n")


OWN = """
from hypothesis import given
from promptcache.testing import prompts

@given(prompts("greeting.xml"))
def test_nobody_is_greeted(case):
    assert "Hello" not in case.text
"""


def test_own_tests_beside_the_schema_run(command: Command, folder: Path) -> None:
    """The tests in `test_greeting.py` belong to `greeting.xml`: their failure is shown with the smallest prompt."""
    write(folder)
    (folder / "test_greeting.py").write_text(OWN, encoding="utf-8")

    result = command("test", "greeting.xml", "--json")

    (tested,) = json.loads(result.stdout)["schemas"]
    own = tested["tests"][-1]
    assert result.exit_code == 1
    assert (own["kind"], own["name"]) == ("own test file", "test_greeting.py")
    assert 'prompt: <prompt schema="greeting"><hello name="x"/></prompt>' in own["failure"]


def test_wrong_logits_are_shown_with_the_smallest_prompt(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cached logits that are not the reference's fail the law, for the smallest prompt that shows it."""
    monkeypatch.setattr(Engine, "reference", lambda engine, prompt: engine.logits(prompt) * (1 + ("hello" in prompt)))
    write(folder)

    result = command("test", "greeting.xml", "--model", "demo", "--prompts", "5")

    assert result.exit_code == 1
    assert (
        "law 'cached logits are the reference's' failed\n    logits lie 0.5 from the reference, 0.0001" in result.stdout
    )
    assert '    prompt: <prompt schema="greeting"><hello name="' in result.stdout


def test_nothing_is_left_where_it_runs(folder: Path) -> None:
    """Tests write nothing into the working directory."""
    write(folder)
    (folder / "test_greeting.py").write_text("def test_it(): pass", encoding="utf-8")
    before = sorted(folder.iterdir())
    words = [sys.executable, "-m", "promptcache", "test", "greeting.xml"]

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

    test_command.find_hypothesis("tests need Hypothesis", "do without")

    assert Path(os.environ["HYPOTHESIS_STORAGE_DIRECTORY"]).is_relative_to(tempfile.gettempdir())


def test_without_hypothesis_schemas_are_not_tested(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Hypothesis, the command names the package to install."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    write(folder)

    result = command("test", "greeting.xml")

    assert (result.exit_code, "pip install 'promptcache[testing]'" in result.stderr) == (3, True)


def test_a_file_that_cannot_be_read_is_no_finding(command: Command, folder: Path) -> None:
    """A missing file ends with the environment's code, as with `check`."""
    assert command("test", "nowhere.xml").exit_code == 3


@pytest.mark.parametrize(
    ("words", "valid", "code", "expected"),
    [
        ("", "true", 0, "greeting.xml: 1 example, 2 combinations: passed\n"),
        ("--model demo --prompts 2", "true", 0, "greeting.xml: 1 example, 2 combinations, 1 law: passed\n"),
        ("", "false", 1, "PC311"),
    ],
    ids=["passed", "with a model", "a wrong example"],
)
def test_examples_and_combinations_are_counted(
    command: Command, folder: Path, words: str, valid: str, code: int, expected: str
) -> None:
    """A schema whose examples and pairs of choices can be planned passes, in one line. A wrong example has its code."""
    write(folder, valid=valid)
    result = command("test", "greeting.xml", *words.split())
    assert (result.exit_code, expected in result.stdout) == (code, True)
    assert code or result.stdout == expected
