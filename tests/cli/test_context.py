"""`--context`: templates are documents for every command, and included files show their own lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command

SCHEMA = """<schema name="notes">
{% for note in notes %}
  <module name="{{ note.name }}">{{ note.text }}</module>
{% endfor %}
</schema>
"""
PROMPT = '<prompt schema="notes"><{{ notes[0].name }}/>Why?</prompt>'
PLAIN = '<schema name="notes"><module name="tides">Low &lt; high.</module></schema>'


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.xml.j2").write_text(SCHEMA)
    Path("why.xml.j2").write_text(PROMPT)
    Path("values.json").write_text(json.dumps({"notes": [{"name": "tides", "text": "Low < high."}]}))
    (tmp_path / "plain").mkdir()
    Path("plain/notes.xml").write_text(PLAIN)


@pytest.mark.parametrize(
    "words",
    [
        "check notes.xml.j2 why.xml.j2",
        "layout notes.xml.j2",
        "render why.xml.j2",
        "run why.xml.j2 --max-new-tokens 1",
        "grammar notes.xml.j2",
        "layout notes.xml.j2 --against plain/notes.xml",
        "test notes.xml.j2",
    ],
)
def test_every_command_that_reads_documents_renders_templates(words: str, command: Command) -> None:
    """With --context a template is read like the document that it makes; without, its names have no values."""
    assert command(*words.split(), "--context", "values.json").exit_code == 0
    assert command(*words.split()).exit_code == 1


@pytest.mark.parametrize(
    "words", ["check all.xml", "fmt --check all.xml", "fmt --check all.xml ask.xml", "test all.xml"]
)
def test_templates_that_a_schema_includes_have_values(words: str, command: Command) -> None:
    """A schema that includes a template is checked, formatted and tested with what the template needs."""
    Path("all.xml").write_text('<schema name="all">\n  <include href="notes.xml.j2"/>\n</schema>\n')
    Path("ask.xml").write_text('<prompt schema="all">\n  <tides/>\n  Why?\n</prompt>\n')

    assert command(*words.split(), "--context", "values.json").exit_code == 0
    assert command(*words.split()).exit_code == 1


def test_a_template_says_what_its_document_says(command: Command) -> None:
    """A prompt made by a template gives the text that it would give if it were written out."""
    Path("why.xml").write_text('<prompt schema="notes"><tides/>Why?</prompt>')

    rendered = command("render", "why.xml.j2", "--context", "values.json").stdout

    assert rendered == command("render", "why.xml", "--schema", "plain/notes.xml").stdout
    assert "Low < high." in rendered


@pytest.mark.parametrize(
    ("values", "code", "words"),
    [
        ("{", 2, "is not JSON"),
        ("[1]", 2, "an object is expected"),
        (None, 3, "No such file"),
    ],
)
def test_a_context_is_a_json_object(values: str | None, code: int, words: str, command: Command) -> None:
    """A context file without values and a missing context file are reported."""
    if values is not None:
        Path("wrong.json").write_text(values)

    result = command("check", "notes.xml.j2", "--context", "wrong.json")

    assert result.exit_code == code
    assert words in result.stderr


@pytest.mark.parametrize(
    "words",
    [
        "check notes.xml --json",
        "layout notes.xml --json",
        "grammar notes.xml --json",
        "test notes.xml --json",
        "render why.xml",
        "run why.xml --json",
        "chat",
        "warm notes.xml --store kept",
        "fmt notes.xml",
    ],
)
def test_a_context_that_nothing_uses_is_refused(words: str, command: Command) -> None:
    """--context without a template is a usage error. Nothing is written, and stdout has at most the JSON of the error."""
    Path("notes.xml.j2").unlink()
    Path("notes.xml").write_text(PLAIN)
    Path("why.xml").write_text('<prompt schema="notes"><tides/></prompt>')

    result = command(*words.split(), "--context", "values.json")

    assert result.exit_code == 2
    told = json.loads(result.stdout)["error"] if "--json" in words else result.stderr
    assert ("none was read" in told, result.stdout == "") == (True, "--json" not in words)
    assert not Path("kept").exists()
    assert Path("notes.xml").read_text() == PLAIN


def test_templates_are_not_formatted(command: Command) -> None:
    """fmt says that a template is no document, and touches nothing."""
    result = command("fmt", "notes.xml.j2")

    assert result.exit_code == 2
    assert "is a template" in result.stderr
    assert Path("notes.xml.j2").read_text() == SCHEMA


def test_lines_of_included_files_are_shown(command: Command) -> None:
    """A fault in an included file is shown with that file's line, and with the include that led there."""
    Path("part.xml").write_text('<schema name="part">\n  <module name="a" require="b"/></schema>')
    Path("whole.xml").write_text('<schema name="whole">\n  <include href="part.xml"/>\n</schema>')

    result = command("check", "whole.xml")

    assert 'part.xml:2:20\n  2 |   <module name="a" require="b"/></schema>\n' in result.stdout
    assert 'whole.xml:2:3 included here\n  2 |   <include href="part.xml"/>\n' in result.stdout
