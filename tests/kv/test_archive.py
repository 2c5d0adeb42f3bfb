"""Archives: what was packed comes back bit for bit; what is anything else is refused, and nothing of it is kept."""

from __future__ import annotations

import errno
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from promptcache.diagnostics import StoreError
from promptcache.kv.files.archive import read_archive, write_archive
from promptcache.kv.files.disk import DiskTier
from tests.kv.stored import small

ALL = [small(f"packed {number}") for number in range(4)]
KEYS = [each.recipe.key for each in ALL]


def files(folder: Path) -> dict[str, bytes]:
    """The encodings that stand in a folder."""
    return {path.name: path.read_bytes() for path in (folder / "encodings").iterdir()}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """An archive of four encodings."""
    tier = DiskTier(tmp_path / "from")
    for each in ALL:
        tier.write(each)
    write_archive(tier, KEYS, tmp_path / "a.tar", {"schemas": "x"})
    return tmp_path / "a.tar"


def members(archive: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    """What an archive holds."""
    with tarfile.open(archive) as tar:
        return [(each, tar.extractfile(each).read()) for each in tar]  # type: ignore[union-attr] # all are files


def rewrite(archive: Path, content: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    """Write an archive anew."""
    with tarfile.open(archive, "w") as tar:
        for member, data in content:
            member.size = len(data) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(data))


def test_what_is_packed_comes_back(archive: Path, tmp_path: Path) -> None:
    """Files on the other machine are the same byte for byte; a second import finds them there."""
    first = read_archive(archive, DiskTier(tmp_path / "to"))
    again = read_archive(archive, DiskTier(tmp_path / "to"))

    assert files(tmp_path / "to") == files(tmp_path / "from")
    assert (first.keys, first.new, again.new) == (tuple(KEYS), 4, 0)
    assert first.nbytes == sum(map(len, files(tmp_path / "to").values()))


def test_an_archive_depends_on_nothing_but_its_content(archive: Path, tmp_path: Path) -> None:
    """Packing twice gives the same bytes, and nothing is left beside the archive."""
    write_archive(DiskTier(tmp_path / "from"), KEYS, tmp_path / "b.tar", {"schemas": "x"})

    assert (tmp_path / "b.tar").read_bytes() == archive.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar", "b.tar", "from"}


def test_an_archive_that_cannot_be_finished_is_none(tmp_path: Path) -> None:
    """Where an encoding is missing nothing stands under the name, and what stood there stays."""
    (tmp_path / "a.tar").write_text("before")
    with pytest.raises(StoreError, match="not in the store"):
        write_archive(DiskTier(tmp_path / "from"), KEYS, tmp_path / "a.tar", {})

    assert (tmp_path / "a.tar").read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar", "from"}


def test_an_archive_takes_the_place_of_a_file_only(archive: Path, tmp_path: Path) -> None:
    """A link keeps pointing where it does, and a folder that takes no files is told by the archive's own name."""
    tier = DiskTier(tmp_path / "from")
    (tmp_path / "link.tar").symlink_to("b.tar")

    write_archive(tier, KEYS, tmp_path / "link.tar", {"schemas": "x"})

    assert (tmp_path / "link.tar").is_symlink()
    assert (tmp_path / "b.tar").read_bytes() == archive.read_bytes()
    with pytest.raises(FileNotFoundError) as refused:
        write_archive(tier, KEYS, tmp_path / "nowhere" / "a.tar", {})
    assert refused.value.filename == str(tmp_path / "nowhere" / "a.tar")


def test_an_archive_that_finds_no_room_is_told_by_its_name(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk is full nothing is left behind, and the error names the archive."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space") as refused:
        write_archive(DiskTier(tmp_path / "from"), KEYS, tmp_path / "b.tar", {})

    assert refused.value.filename == str(tmp_path / "b.tar")
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar", "from"}


def named(name: str) -> Callable[[Path], None]:
    """Return what renames the last member."""

    def change(archive: Path) -> None:
        content = members(archive)
        content[-1][0].name = name
        rewrite(archive, content)

    return change


def linked(archive: Path) -> None:
    """Make the last member a link to a file outside."""
    content = members(archive)
    content[-1][0].type, content[-1][0].linkname = tarfile.SYMTYPE, "/etc/passwd"
    rewrite(archive, content)


def spoiled(archive: Path) -> None:
    """Change a bit of the last member's payload."""
    content = members(archive)
    member, data = content[-1]
    rewrite(archive, [*content[:-1], (member, data[:-1] + bytes([data[-1] ^ 1]))])


def swapped(archive: Path) -> None:
    """Put the bytes of one encoding under the name of another."""
    content = members(archive)
    rewrite(archive, [*content[:-1], (content[-1][0], content[-2][1])])


def manifest(**more: object) -> Callable[[Path], None]:
    """Return what changes the manifest."""

    def change(archive: Path) -> None:
        content = members(archive)
        data = json.dumps({**json.loads(content[0][1]), **more}).encode()
        rewrite(archive, [(content[0][0], data), *content[1:]])

    return change


BAD = {
    "a path upwards": (named("../../escape"), "which is no encoding"),
    "an absolute path": (named("/tmp/escape"), "which is no encoding"),
    "a path upwards from the folder": (named(f"encodings/../{KEYS[3]}.safetensors"), "which is no encoding"),
    "a link": (linked, "which is no encoding"),
    "a flipped bit": (spoiled, "does not match its checksum"),
    "another's name": (swapped, "which is not its name"),
    "one too few": (lambda archive: rewrite(archive, members(archive)[:-1]), "is not whole: 3 encodings"),
    "one twice": (lambda archive: rewrite(archive, [*members(archive), members(archive)[-1]]), "twice"),
    "no manifest": (lambda archive: rewrite(archive, members(archive)[1:]), "does not begin with a manifest"),
    "another version": (manifest(version=2), "archive version 2"),
    "another format": (manifest(format="zip"), "says something else"),
    "keys that are none": (manifest(encodings=7), "says something else"),
    "one that is not there": (manifest(encodings=[*KEYS, "0" * 64]), "is not whole"),
    "cut off": (lambda archive: archive.write_bytes(archive.read_bytes()[:-12_000]), "is not"),
    "empty": (lambda archive: archive.write_bytes(b""), "is not an archive"),
    "something else": (lambda archive: archive.write_bytes(b"hello " * 1000), "is not an archive"),
}


@pytest.mark.parametrize("fault", BAD)
def test_what_is_not_as_it_should_be_is_refused_whole(archive: Path, tmp_path: Path, fault: str) -> None:
    """Whatever is wrong with an archive, it is said, no encoding of it is kept, and no file appears anywhere."""
    change, words = BAD[fault]
    change(archive)
    with pytest.raises(StoreError, match=words):
        read_archive(archive, DiskTier(tmp_path / "to"))

    assert files(tmp_path / "to") == {}
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar", "from", "to"}


def test_a_limit_is_kept_while_importing(archive: Path, tmp_path: Path) -> None:
    """A folder with no room says so, also where there is room for some, and each takes that of the one before."""
    two = 2 * max(map(len, files(tmp_path / "from").values()))

    with pytest.raises(StoreError, match="no room for 4 of 4 encodings"):
        read_archive(archive, DiskTier(tmp_path / "none", budget_bytes=10))
    with pytest.raises(StoreError, match="no room for 2 of 4 encodings"):
        read_archive(archive, DiskTier(tmp_path / "some", budget_bytes=two))

    assert len(files(tmp_path / "some")) == 2
