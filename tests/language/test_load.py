"""Tests of the forms that a document can be given in, and of the errors for other values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from promptcache.diagnostics import InvalidValue, PromptError, SchemaError
from promptcache.language import Prompt, Schema
from promptcache.language.load import open_prompt, open_schema

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
    with pytest.raises(PromptError, match=r"PC010 (there is no such file|the file cannot be read)"):
        open_prompt(source)
    with pytest.raises(SchemaError, match=r"PC010 (there is no such file|the file cannot be read)"):
        open_schema(source)


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
