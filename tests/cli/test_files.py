"""Reading documents and finding schemas."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptcache.cli.files import Document, find_schema, read
from promptcache.cli.report import Kind
from promptcache.cli.sources import Sources
from promptcache.diagnostics import PromptError
from promptcache.language import Prompt

PROMPT = '<prompt schema="s"/>'
SCHEMA = '<schema name="s"/>'


def document(text: str | bytes) -> Document:
    """A document that lies nowhere."""
    return Document(name="d", path=None, data=text.encode() if isinstance(text, str) else text)


@pytest.mark.parametrize("root", ["prompt", "promt", "Prompt", "prompts"])
def test_prompts_are_told_by_their_root(root: str) -> None:
    """A root element that was meant to be a prompt makes a prompt."""
    text = f'\ufeff<?xml version="1.0"?>\n<!-- <schema> -->\n<!DOCTYPE x>\n<{root} schema="s"/>'

    assert document(text).kind is Kind.PROMPT


@pytest.mark.parametrize("text", ["<schema", "<schem/>", "", "no XML", b"\xff\xfe<", "<!-- never closed"])
def test_everything_else_is_read_as_a_schema(text: str | bytes) -> None:
    """What is no prompt is a schema, well formed or not."""
    assert document(text).kind is Kind.SCHEMA


@pytest.mark.parametrize("written", ['"R&amp;D"', "'R&#38;D'", "'R&#x26;D' version='>1'", "'R&amp;D'\n doc='>'"])
def test_names_are_read_as_xml_has_them(written: str) -> None:
    """References in the name of a schema are resolved, and a > within another attribute ends nothing."""
    assert document(f"<schema version='>0' name={written}>").schema_name == "R&D"


def test_telling_kinds_takes_linear_time() -> None:
    """A file made of comments without a root costs one pass."""
    assert document("<!---->" * 9000).kind is Kind.SCHEMA


@pytest.mark.parametrize("place", ["o/p", "o/p/schemas", "o", "o/schemas", "schemas"])
def test_schema_is_found_near_the_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """A schema may lie beside the prompt, in the folder above, or in a `schemas` folder up to two above; its file name is free."""
    (tmp_path / "o" / "p").mkdir(parents=True)
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / "o" / "p" / "prompt.xml").write_text(PROMPT)
    (tmp_path / place / "any.xml").write_text(SCHEMA)
    monkeypatch.chdir(tmp_path)
    sources = Sources()

    found = find_schema(Prompt("s"), read("o/p/prompt.xml", sources), (), (), sources)

    assert found.path == Path(place) / "any.xml"


def test_two_schemas_of_one_name_are_not_guessed(tmp_path: Path) -> None:
    """Where a folder has two schemas of the name, both are named."""
    for name, text in {"p.xml": PROMPT, "a.xml": SCHEMA, "b.xml": SCHEMA}.items():
        (tmp_path / name).write_text(text)
    sources = Sources()

    with pytest.raises(PromptError, match=r"several schemas called 's': .*a\.xml and .*b\.xml"):
        find_schema(Prompt("s"), read(str(tmp_path / "p.xml"), sources), (), (), sources)


def test_similar_name_is_suggested(tmp_path: Path) -> None:
    """A schema nearby whose name is almost the one is named."""
    (tmp_path / "p.xml").write_text('<prompt schema="travell"/>')
    (tmp_path / "t.xml").write_text('<schema name="travel"/>')
    sources = Sources()

    with pytest.raises(PromptError, match="did you mean 'travel'"):
        find_schema(Prompt("travell"), read(str(tmp_path / "p.xml"), sources), (), (), sources)


def test_nearest_of_given_schemas_is_taken(tmp_path: Path) -> None:
    """Of several given schemas of the name, the one nearest to the prompt is meant."""
    sources = Sources()
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "s.xml").write_text(SCHEMA)
    (tmp_path / "two" / "p.xml").write_text(PROMPT)
    given = [read(str(tmp_path / place / "s.xml"), sources) for place in ("one", "two")]

    found = find_schema(Prompt("s"), read(str(tmp_path / "two" / "p.xml"), sources), given, (), sources)

    assert found is given[1]
