"""A file that is written atomically is complete or does not exist, and only regular files are opened."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from promptcache.atomic import NotRegular, atomic_write, open_regular, refuse_links


@pytest.mark.parametrize("error", [ValueError("stop"), KeyboardInterrupt(), OSError(errno.ENOSPC, "full", "inside")])
def test_an_error_leaves_the_old_content(tmp_path: Path, error: BaseException) -> None:
    """After any error the old content stays, and no other file remains."""
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write() -> None:
        with atomic_write(path) as file:
            file.write(b"half")
            raise error

    with pytest.raises(type(error)):
        write()

    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_names_the_file_of_the_caller(tmp_path: Path) -> None:
    """An error names the file that the caller passed, not the temporary file."""
    with pytest.raises(FileNotFoundError) as caught, atomic_write(tmp_path / "gone" / "file"):
        pass

    assert caught.value.filename == str(tmp_path / "gone" / "file")


def test_a_file_is_replaced_with_its_mode(tmp_path: Path) -> None:
    """It keeps its mode from the first byte on, and its content until the end. A link is replaced, and not followed."""
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"secret")
    path.chmod(0o600)
    link.symlink_to(path)
    (tmp_path / "usual").touch()
    before = {*tmp_path.iterdir()}
    with atomic_write(path) as file:
        (other,) = {*tmp_path.iterdir()} - before
        assert stat.S_IMODE(other.stat().st_mode) == 0o600
        file.write(b"more")
        file.flush()
        assert path.read_bytes() == b"secret"
    for place in (link, tmp_path / "new"):
        with atomic_write(place) as file:
            file.write(b"x")

    assert {*tmp_path.iterdir()} == {*before, tmp_path / "new"}
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"more", 0o600)
    assert not link.is_symlink()
    assert (tmp_path / "new").stat().st_mode == link.stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.timeout(20)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_APPEND | os.O_CREAT])
@pytest.mark.parametrize(
    "make",
    [
        Path.mkdir,
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path.with_name("target")),
        lambda path: path.symlink_to(path.with_name("absent")),
        lambda path: path.symlink_to(path),
    ],
    ids=["folder", "pipe", "device", "link", "link to nothing", "loop"],
)
def test_only_regular_files_are_opened(tmp_path: Path, make: Callable[[Path], object], flags: int) -> None:
    """Everything else raises `NotRegular` at once, and nothing behind a link is made or changed."""
    (tmp_path / "target").write_bytes(b"target")
    make(tmp_path / "file")

    with pytest.raises(NotRegular):
        open_regular(tmp_path / "file", flags)

    assert (tmp_path / "target").read_bytes() == b"target"
    assert {path.name for path in tmp_path.iterdir()} == {"target", "file"}


def test_links_are_refused_by_name(tmp_path: Path) -> None:
    """A link is refused, also one to nothing; folders and missing paths are not."""
    (tmp_path / "link").symlink_to(tmp_path / "absent")
    refuse_links(tmp_path, tmp_path / "absent")

    with pytest.raises(NotRegular, match="'link' is a link"):
        refuse_links(tmp_path, tmp_path / "link")
