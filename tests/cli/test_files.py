"""Reading documents, finding schemas, and writing files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from promptcache.cli import files
from promptcache.cli.files import DocumentKind, InputDocument, find_schema, read
from promptcache.cli.sources import Sources
from promptcache.diagnostics import PromptError
from promptcache.language import Prompt
from tests.cli.conftest import DOCUMENTS, Command

PROMPT = '<prompt schema="s"/>'
SCHEMA = '<schema name="s"/>'


def document(text: str | bytes) -> InputDocument:
    """A document without a file."""
    return InputDocument(name="d", path=None, data=text.encode() if isinstance(text, str) else text)


@pytest.mark.parametrize("root", ["prompt", "promt", "Prompt", "prompts"])
def test_prompts_are_told_by_their_root(root: str) -> None:
    """A root element that was meant to be a prompt makes a prompt."""
    text = f'\ufeff<?xml version="1.0"?>\n<!-- <schema> -->\n<!DOCTYPE x>\n<{root} schema="s"/>'

    assert document(text).kind is DocumentKind.PROMPT


@pytest.mark.parametrize("text", ["<schema", "<schem/>", "", "no XML", b"\xff\xfe<", "<!-- never closed"])
def test_everything_else_is_read_as_a_schema(text: str | bytes) -> None:
    """A document whose root cannot be read is a schema."""
    assert document(text).kind is DocumentKind.SCHEMA


@pytest.mark.parametrize("written", ['"R&amp;D"', "'R&#38;D'", "'R&#x26;D' version='>1'", "'R&amp;D'\n doc='>'"])
def test_names_are_read_as_xml_has_them(written: str) -> None:
    """References in the name of a schema are resolved, and a > within another attribute ends nothing."""
    assert document(f"<schema version='>0' name={written}>").schema_name == "R&D"


def test_telling_kinds_takes_linear_time() -> None:
    """A file made of comments without a root costs one pass."""
    assert document("<!---->" * 9000).kind is DocumentKind.SCHEMA


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


def test_two_schemas_of_one_name_are_not_guessed(tmp_path: Path) -> None:
    """If a folder has two schemas of the name, the message names both."""
    for name, text in {"p.xml": PROMPT, "a.xml": SCHEMA, "b.xml": SCHEMA}.items():
        (tmp_path / name).write_text(text)
    sources = Sources()

    with pytest.raises(PromptError, match=r"several schemas called 's': .*a\.xml and .*b\.xml"):
        find_schema(Prompt("s"), read(str(tmp_path / "p.xml"), sources), (), (), sources)


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


@pytest.mark.parametrize(
    "words",
    [
        ["layout", "travel.xml", "--svg", "travel.xml"],
        ["layout", "travel.xml", "--html", "./prompts/../travel.xml"],
        ["layout", "travel.xml", "--svg", "link.xml"],
        ["layout", "link.xml", "--prompt", "prompts/miami.xml", "--svg", "a.svg", "--html", "prompts/miami.xml"],
        ["grammar", "travel.xml", "-o", "travel.xml"],
        ["grammar", "whole.xml", "-o", "support.xml"],
        ["layout", "card.xml.j2", "--context", "card.json", "--svg", "card.json"],
    ],
)
def test_what_is_read_is_never_written_over(command: Command, folder: Path, words: list[str]) -> None:
    """Output never replaces a file that was read, included or given with --context, under any of its names."""
    (folder / "link.xml").symlink_to("travel.xml")
    (folder / "whole.xml").write_text('<schema name="w"><include href="support.xml"/></schema>', encoding="utf-8")
    (folder / "card.xml.j2").write_text('<schema name="card">{{ text }}</schema>', encoding="utf-8")
    (folder / "card.json").write_text('{"text": "Hello."}', encoding="utf-8")
    before = {path: path.read_bytes() for path in folder.rglob("*.*")}

    result = command(*words)

    assert (result.exit_code, result.stdout) == (2, "")
    assert "is what is read: write to another file" in result.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*.*")} == before


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


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["layout", "travel.xml", "--svg", "-"], 2, "the name of a file is expected"),
        (["layout", "travel.xml", "--html", ""], 2, "the name of a file is expected"),
        (["grammar", "travel.xml", "-o", "-"], 2, "the name of a file is expected"),
        (["new", "mine", "-o", "-"], 2, "the name of a file is expected"),
        (["new", "mine", "-o", "prompts"], 2, "prompts exists already; nothing was written"),
        (["layout", "travel.xml", "--svg", "a", "--html", "a"], 2, "--svg and --html both name a"),
        (["layout", "travel.xml", "--svg", "prompts"], 3, "Is a directory: prompts"),
        (["layout", "travel.xml", "--svg", "nowhere/a.svg"], 3, "No such file or directory: nowhere/a.svg"),
        (["layout", "travel.xml", "--svg", "travel.xml/a.svg"], 3, "Not a directory: travel.xml/a.svg"),
        (["layout", "travel.xml", "--svg", "/dev/full"], 2, "/dev/full is a pipe or a device: write to a file"),
        (["layout", "travel.xml", "--svg", "a.svg", "--html", "nowhere/a.html"], 3, "directory: nowhere/a.html"),
        (["grammar", "travel.xml", "-o", "n" * 300], 3, "File name too long"),
        (["new", "n" * 250], 3, "File name too long"),
    ],
)
def test_targets_that_cannot_be_written_are_told(
    command: Command, folder: Path, words: list[str], code: int, message: str
) -> None:
    """Each such target has its message and its exit code, and leaves nothing behind."""
    before = sorted(folder.rglob("*"))

    result = command(*words)

    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert sorted(folder.rglob("*")) == before


def test_what_cannot_be_finished_is_not_begun(command: Command, folder: Path) -> None:
    """If the third of three files cannot be written, the first two are removed."""
    (folder / "code").write_text("in the way", encoding="utf-8")
    before = sorted(folder.rglob("*"))

    result = command("new", "mine", "--from", "code")

    assert (result.exit_code, result.stderr) == (3, "error: File exists: code\n")
    assert sorted(folder.rglob("*")) == before


def test_read_only_files_are_left_alone(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that its owner made read-only is not replaced by another one, although its folder would allow it."""
    monkeypatch.setattr(files.os, "access", lambda path, mode: False)  # a superuser may write to anything

    result = command("fmt", "support.xml")

    assert (result.exit_code, result.stderr) == (3, "error: Permission denied: support.xml\n")
    assert (folder / "support.xml").read_text(encoding="utf-8") == DOCUMENTS["support.xml"]


def test_a_folder_that_takes_no_files_is_told_by_the_file(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the file that the user named, not the one that would have taken its place."""

    opened = os.open

    def refused(path: Path, flags: int, *rest: int) -> int:
        if flags & os.O_EXCL:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, flags, *rest)

    monkeypatch.setattr(os, "open", refused)

    result = command("fmt", "support.xml")

    assert (result.exit_code, result.stderr) == (3, "error: Permission denied: support.xml\n")
    assert (folder / "support.xml").read_text(encoding="utf-8") == DOCUMENTS["support.xml"]
