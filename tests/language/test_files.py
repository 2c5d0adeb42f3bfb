"""Tests of the forms that documents and their files can be given in, and of the errors for other values."""

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import InvalidValue, PromptError, SchemaError
from promptcache.language import Prompt, Schema, check_schema, parse_schema
from promptcache.language.limits import MAX_BYTES
from promptcache.language.load import open_prompt, open_schema
from tests.conftest import law_examples
from tests.language.documents import checked, codes, faults
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

    (found,) = faults(
        SchemaError, parse_schema, f'<schema name="s"><module name="a" {attributes}/></schema>', folder=files
    )
    assert (found.code, found.help) == (code, fix)


def test_templates_in_memory_get_the_context() -> None:
    """A file with a template's name is a template in memory too, and its faults have the right place."""
    document = '<schema name="s"><include href="more/part.xml.j2"/></schema>'
    files = {"more/part.xml.j2": PART}

    (module,) = checked(document, folder=files, context={"text": "1 < 2"}).modules.values()
    (found,) = faults(SchemaError, parse_schema, document, folder=files)

    assert any("1 < 2" in each.text for each in module.children)
    assert (found.code, found.span.source) == ("PC603", "more/part.xml.j2")


MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        (None, 'or Prompt("schema").user("…")'),
        (b"<prompt/>", "decode bytes"),
        (5, 'XML text (it starts with "<"), the path of a file, or'),
        (MESSAGES[0], "; chat messages are given as a list, also of one message"),
        ("", "there is no file with this name"),
        ("What is a contract?", "there is no file with this name"),
        ("Hello", "there is no file with this name"),
        ("a\0b.xml", "there is no file with this name"),
        (Schema("s"), "the path of a file"),
    ],
)
def test_a_prompt_says_what_it_can_be(source: Any, hint: str) -> None:
    """Other types and plain words are refused with a list of all accepted forms."""
    with pytest.raises(InvalidValue) as found:
        open_prompt(source)

    assert " is not a prompt: a prompt is " in str(found.value)
    assert hint in str(found.value)


@pytest.mark.parametrize(
    "source", [None, b"<schema/>", 5, MESSAGES, {}, "", "You are a helpful assistant.", Prompt("s")]
)
def test_a_schema_says_what_it_can_be(source: Any) -> None:
    """A schema of another type is refused with a list of all accepted forms."""
    with pytest.raises(InvalidValue, match="is not a schema: a schema is XML text"):
        open_schema(source)


@pytest.mark.parametrize(
    "source", ["nosuch.xml", "no such file.xml", "folder/nosuch", "x.xml.j2", Path("nosuch"), "x" * 5000 + ".xml"]
)
def test_what_is_written_as_a_path_is_one(source: Any) -> None:
    """A path without a file is refused with the name of the file."""
    for error, read in ((PromptError, open_prompt), (SchemaError, open_schema)):
        with pytest.raises(error, match=r"PC010 (there is no such file|the file cannot be read)"):
            read(source)


def test_what_is_no_document_file_is_refused(tmp_path: Path) -> None:
    """A missing file, a folder and a pipe are faults with their name; an impossible name in `src` has its place."""
    os.mkfifo(tmp_path / "pipe.xml")
    for path in (tmp_path / "nothing.xml", tmp_path, tmp_path / "pipe.xml"):
        (found,) = faults(SchemaError, Schema.from_file, path)
        assert (found.code, found.span.source) == ("PC010", str(path))
    (tmp_path / "s.xml").write_text(f'<schema name="s"><module name="a" src="{"n" * 300}"/></schema>')
    assert codes(faults(SchemaError, Schema.from_file, tmp_path / "s.xml")) == ["PC211"]


def test_a_file_that_does_not_exist_gets_a_suggestion(tmp_path: Path) -> None:
    """It is the file with this name and a suffix, a similar name, or the documents there; Markdown is named as such."""
    (tmp_path / "support.xml").write_text("<schema/>", encoding="utf-8")
    (tmp_path / "notes.md").write_text("Some <b>notes</b>", encoding="utf-8")
    for name, fix in {
        "supprt.xml": "support.xml'",
        "support": "support.xml'",
        "no/x.xml": "there is no folder",
        "q1": "folder .* has support.xml",
    }.items():
        with pytest.raises(SchemaError, match=f"PC010 there is no such file .*{fix}"):
            open_schema(tmp_path / name)
    with pytest.raises(SchemaError, match=r"1:1: PC001 the file is Markdown, .*src=\"notes.md\"/>"):
        open_schema(tmp_path / "notes.md")


def test_a_file_may_be_called_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text with spaces is a path if a file has this name."""
    monkeypatch.chdir(tmp_path)
    Path("my first prompt").write_text('<prompt schema="s">Hi</prompt>', encoding="utf-8")

    assert open_prompt("my first prompt").schema == "s"
