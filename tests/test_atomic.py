"""A file that is written atomically is there whole, or not at all."""

from __future__ import annotations

import errno
import stat
from pathlib import Path

import pytest

from promptcache.atomic import atomic_write


def test_a_file_has_its_name_when_it_is_whole(tmp_path: Path) -> None:
    """While it is written the old content stands under the name, and afterwards the new one; nothing else is left."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"

    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError("stop"), KeyboardInterrupt(), OSError(errno.ENOSPC, "full", "inside")])
def test_an_error_leaves_no_trace(tmp_path: Path, error: BaseException) -> None:
    """After any interruption the old content is unchanged and no other file is left."""
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


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    """The system's error is about a temporary file; it names the one that the caller knows."""
    with pytest.raises(FileNotFoundError) as raised, atomic_write(tmp_path / "gone" / "file"):
        pass

    assert raised.value.filename == str(tmp_path / "gone" / "file")


def test_the_mode_is_kept_from_the_first_byte(tmp_path: Path) -> None:
    """A file that others may not read is never written to one that they may; a new file gets the usual mode."""
    path = tmp_path / "file"
    path.write_bytes(b"secret")
    path.chmod(0o600)
    with atomic_write(path) as file:
        (other,) = set(tmp_path.iterdir()) - {path}
        assert stat.S_IMODE(other.stat().st_mode) == 0o600
        file.write(b"more")
    (tmp_path / "usual").touch()
    with atomic_write(tmp_path / "new") as file:
        file.write(b"x")

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """A link that stands in the place of the file is replaced, and what it points to stays."""
    (tmp_path / "other").write_bytes(b"other")
    (tmp_path / "file").symlink_to(tmp_path / "other")
    with atomic_write(tmp_path / "file") as file:
        file.write(b"new")

    assert (tmp_path / "other").read_bytes() == b"other"
    assert not (tmp_path / "file").is_symlink()


def test_a_temporary_file_that_stands_there_is_not_written_over(tmp_path: Path) -> None:
    """The name of the temporary file can be given; one that exists is an error."""
    (tmp_path / "tmp").write_bytes(b"other")
    with pytest.raises(FileExistsError), atomic_write(tmp_path / "file", temporary=tmp_path / "tmp"):
        pass

    assert (tmp_path / "tmp").read_bytes() == b"other"
