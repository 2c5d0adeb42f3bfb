"""`--context`: templates are documents for every command, and included files show their own lines."""

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


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.xml.j2").write_text(SCHEMA)
    Path("why.xml.j2").write_text(PROMPT)
    Path("values.json").write_text(json.dumps({"notes": [{"name": "tides", "text": "Low < high."}]}))
    (tmp_path / "plain").mkdir()
    Path("plain/notes.xml").write_text('<schema name="notes"><module name="tides">Low &lt; high.</module></schema>')


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


def test_lines_of_included_files_are_shown(command: Command) -> None:
    """A fault in an included file is shown with that file's line, and with the include that led there."""
    Path("part.xml").write_text('<schema name="part">\n  <module name="a" require="b"/></schema>')
    Path("whole.xml").write_text('<schema name="whole">\n  <include href="part.xml"/>\n</schema>')

    result = command("check", "whole.xml")

    assert 'part.xml:2:20\n  2 |   <module name="a" require="b"/></schema>\n' in result.stdout
    assert 'whole.xml:2:3 included here\n  2 |   <include href="part.xml"/>\n' in result.stdout
