"""`promptcache watch`, whose waiting is replaced by edits."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from promptcache.cli import watch
from tests.cli.conftest import Command

SCHEMA = '<schema name="trip"><system>The best dish of Miami is {}.<module name="m" src="m.txt"/></system></schema>'
PROMPT = '<prompt schema="trip"><m/><user>What is the best dish of Miami?</user></prompt>'
Edits = Callable[..., None]


@pytest.fixture
def edits(monkeypatch: pytest.MonkeyPatch) -> Edits:
    """A function that states what happens while the command waits; after the last edit, the user ends it."""

    def state(*steps: Callable[[], object]) -> None:
        left = list(steps)

        def sleep(_: float) -> None:
            if not left:
                raise KeyboardInterrupt
            left.pop(0)()

        monkeypatch.setattr(watch, "time", SimpleNamespace(sleep=sleep))

    return state


def test_each_file_of_a_prompt_is_watched(command: Command, folder: Path, edits: Edits) -> None:
    """Saving a prompt, its schema or a text of it shows it again; and so does fixing a fault."""
    schema, prompt, text = (folder / name for name in ("trip.xml", "miami.xml", "m.txt"))
    schema.write_text(SCHEMA.format("stone crab"), encoding="utf-8")
    prompt.write_text(PROMPT.replace("<m/>", "<n/>"), encoding="utf-8")
    text.write_text("Be brief.", encoding="utf-8")
    edits(
        lambda: prompt.write_text(PROMPT, encoding="utf-8"),
        lambda: schema.write_text(SCHEMA.format("onion soup"), encoding="utf-8"),
        lambda: text.write_text("Be kind and brief.", encoding="utf-8"),
        lambda: (folder / "other.xml").write_text(PROMPT, encoding="utf-8"),
    )

    result = command("watch", "miami.xml")

    assert result.exit_code == 130
    assert result.stderr.count("waiting until a file is saved") == 4
    assert result.stderr.count("PC401") == 1
    assert result.stdout.count("The best dish of Miami is stone crab.\n") == 1
    assert result.stdout.count("The best dish of Miami is onion soup.\n") == 2
    assert result.stdout.count("trip  positions [0, ") == 3


def test_a_schema_is_laid_out(command: Command, folder: Path, edits: Edits) -> None:
    """A schema has a layout and no answer; one that is not there yet is waited for."""
    schema = folder / "new.xml"
    edits(lambda: schema.write_text('<schema name="new">Text.</schema>', encoding="utf-8"))

    result = command("watch", "new.xml")

    assert "there is no such file" in result.stderr
    assert result.stdout.startswith("new  positions [0, ")
    assert "TTFT" not in result.stderr
