"""Tests of files in memory: the files that a schema names are found as on a disk, and no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import SchemaError
from promptcache.language import Schema, check_schema, parse_schema
from promptcache.language.limits import MAX_BYTES
from tests.conftest import law_examples
from tests.strategies import BrokenSchema, SchemaFiles, broken_schemas, schema_files

PART = '<schema name="part"><module name="a">{{ text }}</module></schema>'


@pytest.mark.law
@settings(max_examples=law_examples(0.5))
@given(drawn=st.one_of(schema_files(), broken_schemas()))
def test_files_in_memory_are_files(drawn: SchemaFiles | BrokenSchema) -> None:
    """A schema and its faults are the same in memory and on a disk."""
    files = {**drawn.files, "main.xml": drawn.xml}
    with TemporaryDirectory() as folder:
        home = Path(folder)
        for name, text in files.items():
            (home / name).parent.mkdir(exist_ok=True, parents=True)
            (home / name).write_bytes(text.encode())
        on_disk = outcome(lambda: Schema.from_file(home / "main.xml"))

    in_memory = outcome(lambda: parse_schema(drawn.xml, source="main.xml", folder=files))
    assert in_memory == on_disk.replace(f"{folder}/", "")


def outcome(read: Callable[[], Schema]) -> str:
    """Return the schema or its faults, with their places."""
    try:
        return repr(check_schema(read()).source)
    except SchemaError as error:
        return repr(error.diagnostics)


@pytest.mark.parametrize(
    ("attributes", "code", "fix"),
    [
        ('src="part.txt"', "PC211", "did you mean 'parts.txt'?"),
        ('src="more/parts.tx"', "PC211", "did you mean 'more/parts.txt'?"),
        ('src="more"', "PC211", "a path is relative to the folder of the file that contains it"),
        ('src="../parts.txt"', "PC210", "move the file into the folder, or copy its content"),
        ('src="/memory/../parts.txt"', "PC210", "move the file into the folder, or copy its content"),
        ('src="surrogate.txt"', "PC212", "save the file as UTF-8"),
        ('src="large.txt"', "PC213", "split it"),
    ],
)
def test_files_in_memory_are_refused_as_files_are(attributes: str, code: str, fix: str) -> None:
    """A missing, outside, too large or non-UTF-8 text gets the same help as a file."""
    files = {"parts.txt": "", "more/parts.txt": "", "surrogate.txt": "a\n\ud800", "large.txt": "a" * (MAX_BYTES + 1)}

    with pytest.raises(SchemaError) as caught:
        parse_schema(f'<schema name="s"><module name="a" {attributes}/></schema>', folder=files)

    assert [(each.code, each.help) for each in caught.value.diagnostics] == [(code, fix)]


def test_templates_in_memory_get_the_context() -> None:
    """A file with a template's name is a template in memory too, and its faults have the right place."""
    document = '<schema name="s"><include href="more/part.xml.j2"/></schema>'
    files = {"more/part.xml.j2": PART}

    (module,) = check_schema(parse_schema(document, folder=files, context={"text": "1 < 2"})).modules.values()
    with pytest.raises(SchemaError) as caught:
        parse_schema(document, folder=files)

    assert any("1 < 2" in each.text for each in module.children)
    assert [(each.code, each.span.source) for each in caught.value.diagnostics] == [("PC603", "more/part.xml.j2")]
