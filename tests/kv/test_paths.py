"""`~` in the path of a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptcache.diagnostics import StoreError
from promptcache.kv import StoreConfig
from promptcache.kv.files.disk import DiskTier
from promptcache.kv.files.paths import expand_home
from promptcache.kv.store_config import open_store
from tests.kv.stored import shape


def test_a_tilde_at_the_beginning_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~/x` is `x` in HOME; a tilde anywhere else is a character like others."""
    monkeypatch.setenv("HOME", str(tmp_path))

    assert [expand_home(path) for path in ("~/x", Path("~/x"), "x/~", "/~x")] == [
        tmp_path / "x", tmp_path / "x", Path("x/~"), Path("/~x")
    ]  # fmt: skip


def test_the_home_of_nobody_is_no_store() -> None:
    """A store in the home of a user who does not exist is refused in our words, however it is opened."""
    for opened in (
        lambda: DiskTier("~nobody-here/x"),
        lambda: open_store("~nobody-here/x", shape()),
        lambda: open_store(StoreConfig(folder="~nobody-here/x"), shape()),
    ):
        with pytest.raises(StoreError, match="'~nobody-here/x': there is no such user here"):
            opened()


def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody knows what `~` is, as in containers with made-up user numbers, the message says so."""
    monkeypatch.setattr("os.path.expanduser", lambda path: path)

    with pytest.raises(StoreError, match="HOME is not set"):
        expand_home("~/.cache/x")
