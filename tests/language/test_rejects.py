"""Every file of `rejects/` produces the code in its first line, at the line and column given there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from promptcache.diagnostics import Diagnostic, LanguageError, Severity
from promptcache.language import Prompt, Schema, check_schema, resolve_prompt
from tests.language.documents import SCHEMAS

FOLDER = Path(__file__).parent / "rejects"
REJECTS = sorted([*FOLDER.glob("*.xml"), *FOLDER.glob("*.xml.j2")])


def header(path: Path) -> tuple[str, int, int, Path]:
    """Return the expectation in a file's first line, and the file of the fault: itself or an included file."""
    match = re.match(rb"<!-- (PC\d{3}) (\d+):(\d+)(?: in (\S+))? -->", path.read_bytes())
    assert match is not None, f"{path.name} begins with <!-- code line:column --> or <!-- code line:column in file -->"
    return match[1].decode(), int(match[2]), int(match[3]), path.parent / match[4].decode() if match[4] else path


def diagnose(path: Path) -> tuple[Diagnostic, ...]:
    """Return the diagnostics of a schema, or of a prompt for one of the schemas in `schemas/`."""
    try:
        if not re.search(rb"^<prom", path.read_bytes(), re.MULTILINE):
            return check_schema(Schema.from_file(path)).warnings
        prompt = Prompt.from_file(path)
        known = SCHEMAS / f"{prompt.schema}.xml"
        resolve_prompt(prompt, check_schema(Schema.from_file(known if known.exists() else SCHEMAS / "travel.xml")))
    except LanguageError as error:
        return error.diagnostics
    return ()


@pytest.mark.parametrize("path", REJECTS, ids=lambda path: path.stem)
def test_rejects_name_code_and_place(path):
    """The first diagnostic has the expected code and place, and a message without folders."""
    code, line, column, file = header(path)
    first = diagnose(path)[0]
    assert (first.code, first.span.line, first.span.column) == (code, line, column)
    assert first.span.source == str(file)
    assert first.message
    assert str(path.parent) not in first.message


def test_schemas_of_this_folder_are_accepted():
    """The schemas for rejected prompts are valid."""
    for path in SCHEMAS.glob("*.xml"):
        assert not [item for item in check_schema(Schema.from_file(path)).warnings if item.severity is Severity.ERROR]
