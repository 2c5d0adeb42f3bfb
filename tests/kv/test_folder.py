"""`~` in the path of a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptcache.diagnostics import StoreError
from promptcache.kv import StoreConfig, expand_home, open_store
from promptcache.kv.files.disk import DiskTier
from tests.kv.stored import shape


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
