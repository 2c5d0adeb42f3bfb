"""`promptcache collect` writes files of members."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command

SCHEMA = """<schema name="desk">
  <user>
    <collection name="notes" src="notes.jsonl" max="4">
      <module name="own">A note of the schema.</module>
    </collection>
    <module name="more"><collection name="tools"/></module>
  </user>
</schema>
"""


@pytest.fixture
def notes(folder: Path) -> Path:
    """A schema and a folder of texts."""
    (folder / "desk.xml").write_text(SCHEMA, encoding="utf-8")
    (folder / "texts" / "deep").mkdir(parents=True)
    (folder / "texts" / "2 wifi.md").write_text("\ufeff The password is on the door.\n", encoding="utf-8")
    (folder / "texts" / "deep" / "opening.txt").write_text("Eight.", encoding="utf-8")
    (folder / "texts" / ".hidden").write_bytes(b"\xff")
    return folder


def members(folder: Path) -> dict[str, str]:
    lines = (folder / "notes.jsonl").read_text(encoding="utf-8").splitlines()
    return {each["name"]: each["text"] for each in map(json.loads, lines)}


def test_texts_become_members(command: Command, notes: Path) -> None:
    """A folder stands for its texts; the schema then has them, and a prompt can name them."""
    result = command("collect", "desk.xml", "notes", "texts")

    assert (result.exit_code, result.stderr) == (0, "notes.jsonl: 2 added, 0 replaced, 0 removed; 2 members\n")
    assert members(notes) == {"2-wifi": "The password is on the door.", "opening": "Eight."}
    (notes / "p.xml").write_text(
        '<prompt schema="desk"><notes><use module="2-wifi"/><own/></notes></prompt>', encoding="utf-8"
    )
    assert command("check", "p.xml").exit_code == 0


def test_fields_of_other_files_become_members(command: Command, notes: Path) -> None:
    """A file of another program has an id and a text under other names, and what prompts show of the rest."""
    lines = [
        {"id": 17, "body": "Eight.", "title": "Opening", "year": 2026},
        {"id": "a b", "body": "Nine.", "year": None},
    ]
    (notes / "other.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    fields = ("--name-field", "id", "--text-field", "body", "--metadata", "title", "--metadata", "year")

    assert command("collect", "desk.xml", "notes", "other.jsonl").exit_code == 1
    assert command("collect", "desk.xml", "notes", "other.jsonl", *fields).exit_code == 0
    assert members(notes) == {"17": "title: Opening\nyear: 2026\nEight.", "a-b": "Nine."}
    (notes / "p.xml").write_text('<prompt schema="desk"><notes><use module="17"/></notes></prompt>', encoding="utf-8")
    assert command("check", "p.xml").exit_code == 0
    wrong = command("collect", "desk.xml", "notes", "other.jsonl", "--name-field", "key", "--text-field", "body")
    assert "there is no 'key'" in wrong.stderr
    assert "1 more line like this" in wrong.stderr


def test_members_are_replaced_and_removed(command: Command, notes: Path) -> None:
    """What exists keeps its place; JSON lines are taken as they are."""
    command("collect", "desk.xml", "notes", "texts")
    (notes / "new.jsonl").write_text('{"name": "opening", "text": " Nine. "}\n{"name": "a", "text": "A"}\n')

    result = command("collect", "desk.xml", "/notes", "new.jsonl", "--remove", "2-wifi", "--json")

    counts = {"added": 1, "replaced": 1, "removed": 1, "members": 2}
    assert json.loads(result.stdout) == {"file": "notes.jsonl", **counts}
    assert members(notes) == {"opening": " Nine. ", "a": "A"}
