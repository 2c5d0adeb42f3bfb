"""Reading documents, finding schemas, and writing files."""

import errno
import json
import os
from pathlib import Path

import pytest
from lxml import etree

from promptcache.cli.documents import DocumentKind, InputDocument, Sources, find_schema, read
from promptcache.diagnostics import PromptError
from promptcache.language import Prompt
from tests.cli.conftest import DOCUMENTS, Command

PROMPT = '<prompt schema="s"/>'
SCHEMA = '<schema name="s"/>'


def document(text: str | bytes) -> InputDocument:
    """A document without a file."""
    return InputDocument(name="d", path=None, data=text.encode() if isinstance(text, str) else text)


@pytest.mark.parametrize("written", ['"R&amp;D"', "'R&#38;D'", "'R&#x26;D' version='>1'", "'R&amp;D'\n doc='>'"])
def test_names_are_read_as_xml_has_them(written: str) -> None:
    """References in the name of a schema are resolved, and a > within another attribute ends nothing."""
    assert document(f"<schema version='>0' name={written}>").schema_name == "R&D"


PLACES = ["o/p", "o/p/schemas", "o", "o/schemas", "schemas"]


@pytest.mark.parametrize("place", PLACES)
def test_schema_is_found_near_the_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """A schema may be beside the prompt, in the folder above, or in a `schemas` folder up to two above; the nearest counts."""
    for each in PLACES[PLACES.index(place) :]:
        (tmp_path / each).mkdir(parents=True, exist_ok=True)
        (tmp_path / each / "any.xml").write_text(SCHEMA)
    (tmp_path / "o" / "p").mkdir(parents=True, exist_ok=True)
    (tmp_path / "o" / "p" / "prompt.xml").write_text(PROMPT)
    monkeypatch.chdir(tmp_path)
    sources = Sources()

    found = find_schema(Prompt("s"), read("o/p/prompt.xml", sources), (), (), sources)

    assert found.path == Path(place) / "any.xml"


@pytest.mark.timeout(60)
def test_a_pipe_beside_a_prompt_is_skipped(command: Command, folder: Path) -> None:
    """The search for a schema does not wait for a pipe with the name of an XML file."""
    os.mkfifo(folder / "prompts" / "a.xml")

    assert command("check", "prompts/miami.xml").stdout == "1 prompt and 1 schema checked: no findings\n"


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("travell", "did you mean 'travel'?"),
        ("schemas/trips.xml", 'write the name of the schema, not its file: schema="travel"'),
        ("other", "say where it is with --schema FILE"),
    ],
)
def test_a_schema_that_is_not_found_has_a_fix(tmp_path: Path, name: str, fix: str) -> None:
    """The nearest name of a schema nearby, or the name in the file that a prompt names."""
    (tmp_path / "p.xml").write_text(f'<prompt schema="{name}"/>')
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "trips.xml").write_text('<schema name="travel"/>')
    sources = Sources()

    with pytest.raises(PromptError) as caught:
        find_schema(Prompt(name), read(str(tmp_path / "p.xml"), sources), (), (), sources)

    assert caught.value.diagnostics[0].help == fix


@pytest.mark.parametrize("words", [["layout", "travel.xml", "--svg"], ["grammar", "travel.xml", "--output"]])
def test_what_was_made_before_is_replaced(command: Command, folder: Path, words: list[str]) -> None:
    """A picture or grammar is written over an older one, which keeps its mode and its links."""
    (folder / "old").write_text("old", encoding="utf-8")
    (folder / "old").chmod(0o640)
    (folder / "made").symlink_to("old")

    assert command(*words, "made").exit_code == 0

    assert "travel" in (folder / "old").read_text(encoding="utf-8")
    assert (folder / "old").stat().st_mode & 0o777 == 0o640
    assert (folder / "made").is_symlink()
    assert not list(folder.glob(".old*"))


def test_what_cannot_be_finished_is_not_begun(command: Command, folder: Path) -> None:
    """If the third of three files cannot be written, the first two are removed."""
    (folder / "code").write_text("in the way", encoding="utf-8")
    before = sorted(folder.rglob("*"))

    result = command("new", "mine", "--from", "code")

    assert (result.exit_code, result.stderr) == (3, "error: File exists: code\n")
    assert sorted(folder.rglob("*")) == before


HEAD = '\ufeff<?xml version="1.0"?>\n<!-- <schema> -->\n<!DOCTYPE x>\n'


KINDS: dict[str | bytes, DocumentKind] = {
    **{f'{HEAD}<{root} schema="s"/>': DocumentKind.PROMPT for root in ("prompt", "promt", "Prompt", "prompts")},
    **dict.fromkeys(("<schema", "<schem/>", "", "no XML", b"\xff\xfe<", "<!-- never closed"), DocumentKind.SCHEMA),
    "<!---->" * 9000: DocumentKind.SCHEMA,  # which takes linear time
}


@pytest.mark.parametrize(("text", "kind"), KINDS.items(), ids=range(len(KINDS)))
def test_kinds_are_told_by_the_root(text: str | bytes, kind: DocumentKind) -> None:
    """A root element that was meant to be a prompt makes a prompt. A document whose root cannot be read is a schema."""
    assert document(text).kind is kind


def test_of_several_schemas_the_nearest_given_one_is_taken(tmp_path: Path) -> None:
    """If a folder has two schemas of the name, the message names both; of given ones the nearest to the prompt is meant."""
    sources = Sources()
    for name in ("one/s.xml", "two/a.xml", "two/b.xml", "two/p.xml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(PROMPT if name == "two/p.xml" else SCHEMA)
    prompt = read(str(tmp_path / "two" / "p.xml"), sources)
    given = [read(str(tmp_path / place), sources) for place in ("one/s.xml", "two/a.xml")]

    with pytest.raises(PromptError, match=r"several schemas called 's': .*a\.xml and .*b\.xml"):
        find_schema(Prompt("s"), prompt, (), (), sources)
    assert find_schema(Prompt("s"), prompt, given, (), sources) is given[1]


def test_files_in_folders_that_may_not_be_written_are_left_alone(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no temporary file can be made, the message names the file of the user."""
    opened = os.open

    def refused(path: Path, flags: int, *rest: int) -> int:
        if flags & os.O_EXCL:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, flags, *rest)

    monkeypatch.setattr(os, "open", refused)
    result = command("fmt", "support.xml")

    assert (result.exit_code, result.stderr) == (3, "error: Permission denied: support.xml\n")
    assert (folder / "support.xml").read_text(encoding="utf-8") == DOCUMENTS["support.xml"]


def test_writes_to_stdout_and_to_a_file(command: Command, folder: Path) -> None:
    """The grammar is the same on stdout, in a file and in JSON, and validates the schema's prompts."""
    printed = command("grammar", "travel.xml").stdout
    assert command("grammar", "travel.xml", "-o", "travel.rng").stdout == ""
    assert json.loads(command("grammar", "travel.xml", "--json").stdout)["grammar"] == printed
    grammar = etree.RelaxNG(etree.parse(folder / "travel.rng"))
    assert grammar.validate(etree.parse(folder / "prompts/miami.xml"))
    assert not grammar.validate(etree.parse(folder / "prompts/typo.xml"))
    assert (folder / "travel.rng").read_text(encoding="utf-8") == printed
