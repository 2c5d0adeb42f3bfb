"""Opening the files of a folder, and `~` in its path."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from promptcache.diagnostics import CorruptEncoding, StoreError
from promptcache.kv import StoreConfig, expand_home, open_store
from promptcache.kv.files import folder
from promptcache.kv.files.disk import DiskTier
from promptcache.kv.files.folder import open_encoding
from tests.kv.stored import shape, small, whole_file

KEY = small().recipe.key


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write the file of an encoding and return its path."""
    path = tmp_path / "encoding"
    path.write_bytes(whole_file(small()))
    return path


@pytest.mark.parametrize("mapped", [True, False])
def test_a_file_that_is_cut_while_it_is_opened_is_corrupt(
    file: Path, mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is truncated after its header was read is corrupt."""
    original = folder._read_header

    def cut(descriptor: int, path: Path, key: str) -> Any:
        found = original(descriptor, path, key)
        os.truncate(path, found[1] + 1)
        return found

    monkeypatch.setattr(folder, "_read_header", cut)

    with pytest.raises(CorruptEncoding, match="changed while it was opened"):
        open_encoding(file, KEY, mapped=mapped)


@pytest.mark.parametrize(("number", "expected"), [(errno.EIO, CorruptEncoding), (errno.EMFILE, OSError)])
def test_only_errors_of_one_file_make_it_corrupt(
    file: Path, number: int, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of one file makes it corrupt, and other system errors stay `OSError`."""

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "preadv", fail)

    with pytest.raises(expected) as caught:
        open_encoding(file, KEY, mapped=False)
    assert isinstance(caught.value, CorruptEncoding) == (number == errno.EIO)


def test_a_tilde_at_the_beginning_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `~` at the start is the home folder; elsewhere it is an ordinary character."""
    monkeypatch.setenv("HOME", str(tmp_path))

    assert [expand_home(path) for path in ("~/x", Path("~/x"), "x/~", "/~x")] == [
        tmp_path / "x", tmp_path / "x", Path("x/~"), Path("/~x")
    ]  # fmt: skip


def test_the_home_of_an_unknown_user_is_refused() -> None:
    """A path in the home of an unknown user raises `StoreError`, however it is opened."""
    for opened in (
        lambda: DiskTier("~nobody-here/x"),
        lambda: open_store("~nobody-here/x", shape()),
        lambda: open_store(StoreConfig(folder="~nobody-here/x"), shape()),
    ):
        with pytest.raises(StoreError, match="'~nobody-here/x': there is no such user here"):
            opened()


def test_an_unknown_home_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the home folder is unknown, as in some containers, the message says so."""
    monkeypatch.setattr("os.path.expanduser", lambda path: path)

    with pytest.raises(StoreError, match="HOME is not set"):
        expand_home("~/.cache/x")
