"""`promptcache fmt` writes what changes, whole, and touches nothing that has errors."""

import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Command

LOOSE = '<schema name="s"><module name="a">Two.</module></schema>'
NEAT = '<schema name="s">\n  <module name="a">Two.</module>\n</schema>\n'
DIFF = ["--- s.xml", "+++ s.xml (formatted)", "@@ -1 +1,3 @@", *(f"+{line}" for line in NEAT.splitlines())]


@pytest.fixture
def loose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file to be formatted, in the working directory."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "s.xml"
    path.write_text(LOOSE, encoding="utf-8")
    return path


def test_writes_files_once(command: Command, loose: Path) -> None:
    """A file is formatted in place and named; the second time there is nothing to do."""
    first, second = command("fmt", "s.xml"), command("fmt", "s.xml")
    assert (first.exit_code, first.stdout, first.stderr) == (0, "", "s.xml: formatted\n")
    assert (second.exit_code, second.stdout, second.stderr) == (0, "", "")
    assert loose.read_text(encoding="utf-8") == NEAT


def test_only_writes_when_asked_to(command: Command, loose: Path) -> None:
    """--check leaves files alone, writes a unified diff, and makes a difference a finding."""
    result = command("fmt", "--check", "s.xml")
    assert (result.exit_code, result.stderr) == (1, "s.xml: would be formatted\n")
    assert loose.read_text(encoding="utf-8") == LOOSE
    lines = result.stdout.splitlines()
    assert (lines[:3], lines[-3:]) == (DIFF[:3], DIFF[-3:])


def test_standard_input_goes_to_standard_output(command: Command) -> None:
    """With `-`, standard input is formatted and written to stdout, tabs included."""
    assert command("fmt", "-", stdin=LOOSE.replace("Two.", "a\tb")).stdout == NEAT.replace("Two.", "a\tb")


def test_files_with_errors_are_not_touched(command: Command, folder: Path) -> None:
    """A file with errors keeps every byte and is diagnosed; the others are formatted."""
    before = (folder / "broken.xml").read_bytes()
    result = command("fmt", "broken.xml", "support.xml")
    assert result.exit_code == 1
    assert "error[PC208]" in result.stderr
    assert (folder / "broken.xml").read_bytes() == before
    assert (folder / "support.xml").read_text(encoding="utf-8").count("\n") == 3


def test_mode_line_ends_and_mark_are_kept(command: Command, loose: Path) -> None:
    """A file keeps its mode, CR LF and byte order mark, and a link stays a link."""
    loose.write_bytes(b"\xef\xbb\xbf" + LOOSE.replace("><m", ">\r\n<m").encode())
    loose.chmod(0o640)
    link = loose.parent / "link.xml"
    link.symlink_to(loose)
    command("fmt", "link.xml")
    assert loose.read_bytes() == b"\xef\xbb\xbf" + NEAT.replace("\n", "\r\n").encode()
    assert loose.stat().st_mode & 0o777 == 0o640
    assert link.is_symlink()


def test_a_file_that_cannot_be_written_hinders_no_other(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text and JSON say whether each file was written, is unchanged, or failed; a read-only one is not replaced."""
    names = ("support.xml", "dead.xml", "loose.xml")
    (folder / "loose.xml").write_text(LOOSE, encoding="utf-8")
    before = {name: (folder / name).read_bytes() for name in names}
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "dead.xml")

    told = command("fmt", *names)
    after = {name: (folder / name).read_bytes() for name in names}
    data = command("fmt", "--json", *names)

    assert told.exit_code == data.exit_code == 3
    lines = ["support.xml: formatted", "error: Permission denied: dead.xml", "loose.xml: formatted"]
    assert told.stderr.splitlines()[-3:] == lines
    assert [name for name in names if after[name] == before[name]] == ["dead.xml"]
    documents = json.loads(data.stdout)["documents"]
    assert [each.get("error") for each in documents] == [None, "Permission denied: dead.xml", None]
    assert not any(each["changed"] for each in documents)


def test_json(command: Command, loose: Path) -> None:
    """--json says for each document whether it changed."""
    documents = json.loads(command("fmt", "--json", "--check", "s.xml", "none.xml").stdout)["documents"]
    assert [(each["file"], each["changed"]) for each in documents] == [("s.xml", True), ("none.xml", False)]
    assert documents[1]["diagnostics"][0]["code"] == "PC010"
