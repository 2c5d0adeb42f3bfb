"""An archive gives back the encodings bit for bit, and a bad archive is refused as a whole."""

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
    """Return the files of the encodings in a folder."""
    return {path.name: path.read_bytes() for path in (folder / "encodings").iterdir()}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Return an archive of four encodings."""
    tier = DiskTier(tmp_path / "from")
    for each in ALL:
        tier.write(each)
    write_archive(tier, KEYS, tmp_path / "a.tar", {"schemas": "x"})
    return tmp_path / "a.tar"


def members(archive: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Return the members of an archive."""
    with tarfile.open(archive) as tar:
        return [(each, tar.extractfile(each).read()) for each in tar]  # type: ignore[union-attr] # all are files


def rewrite(archive: Path, content: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    """Write an archive with these members."""
    with tarfile.open(archive, "w") as tar:
        for member, data in content:
            member.size = len(data) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(data))


def test_archived_encodings_are_read_back(archive: Path, tmp_path: Path) -> None:
    """Imported files are the same byte for byte, and a second import adds none."""
    first = read_archive(archive, DiskTier(tmp_path / "to"))
    again = read_archive(archive, DiskTier(tmp_path / "to"))

    assert files(tmp_path / "to") == files(tmp_path / "from")
    assert (first.keys, first.new, again.new) == (tuple(KEYS), 4, 0)
    assert first.nbytes == sum(map(len, files(tmp_path / "to").values()))


def test_equal_encodings_give_equal_archives(archive: Path, tmp_path: Path) -> None:
    """Packing twice gives the same bytes and leaves no other file."""
    write_archive(DiskTier(tmp_path / "from"), KEYS, tmp_path / "b.tar", {"schemas": "x"})

    assert (tmp_path / "b.tar").read_bytes() == archive.read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar", "b.tar", "from"}


def test_a_missing_encoding_leaves_the_target_unchanged(tmp_path: Path) -> None:
    """If an encoding is missing, an old file at the target stays as it is."""
    (tmp_path / "a.tar").write_text("before")
    with pytest.raises(StoreError, match="not in the store"):
        write_archive(DiskTier(tmp_path / "from"), KEYS, tmp_path / "a.tar", {})

    assert (tmp_path / "a.tar").read_text() == "before"
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar", "from"}


def test_links_are_followed_and_errors_name_the_archive(archive: Path, tmp_path: Path) -> None:
    """A link to the target is followed, and an error names the path of the archive."""
    tier = DiskTier(tmp_path / "from")
    (tmp_path / "link.tar").symlink_to("b.tar")

    write_archive(tier, KEYS, tmp_path / "link.tar", {"schemas": "x"})

    assert (tmp_path / "link.tar").is_symlink()
    assert (tmp_path / "b.tar").read_bytes() == archive.read_bytes()
    with pytest.raises(FileNotFoundError) as refused:
        write_archive(tier, KEYS, tmp_path / "nowhere" / "a.tar", {})
    assert refused.value.filename == str(tmp_path / "nowhere" / "a.tar")


def test_a_full_disk_leaves_no_archive(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk leaves no file, and the error names the archive."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space") as refused:
        write_archive(DiskTier(tmp_path / "from"), KEYS, tmp_path / "b.tar", {})

    assert refused.value.filename == str(tmp_path / "b.tar")
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar", "from"}


def named(name: str) -> Callable[[Path], None]:
    """Return a function that renames the last member."""

    def change(archive: Path) -> None:
        content = members(archive)
        content[-1][0].name = name
        rewrite(archive, content)

    return change


def linked(archive: Path) -> None:
    """Make the last member a link to a file outside the archive."""
    content = members(archive)
    content[-1][0].type, content[-1][0].linkname = tarfile.SYMTYPE, "/etc/passwd"
    rewrite(archive, content)


def spoiled(archive: Path) -> None:
    """Flip a bit in the payload of the last member."""
    content = members(archive)
    member, data = content[-1]
    rewrite(archive, [*content[:-1], (member, data[:-1] + bytes([data[-1] ^ 1]))])


def swapped(archive: Path) -> None:
    """Store the bytes of one encoding under the name of another."""
    content = members(archive)
    rewrite(archive, [*content[:-1], (content[-1][0], content[-2][1])])


def manifest(**more: object) -> Callable[[Path], None]:
    """Return a function that changes the manifest."""

    def change(archive: Path) -> None:
        content = members(archive)
        data = json.dumps({**json.loads(content[0][1]), **more}).encode()
        rewrite(archive, [(content[0][0], data), *content[1:]])

    return change


def headed(index: int, **headers: str) -> Callable[[Path], None]:
    """Return a function that gives a member extended headers and the content of a sparse file."""

    def change(archive: Path) -> None:
        content = members(archive)
        member = content[index][0]
        member.pax_headers = {"GNU.sparse." * (name != "size") + name: text for name, text in headers.items()}
        content[index] = (member, b"1\n0\n512\n".ljust(1024, b"\0"))
        rewrite(archive, content)

    return change


HUGE = 10**13
SPARSE = {"major": "1", "minor": "0", "realsize": str(HUGE)}
BAD = {
    "a sparse manifest": (headed(0, **SPARSE, name="manifest.json"), "does not begin with a manifest"),
    "a sparse encoding": (headed(-1, **SPARSE, name=f"encodings/{KEYS[3]}.safetensors"), "which is not an encoding"),
    "a manifest longer than the archive": (headed(0, size=str(HUGE)), "manifest.json is truncated"),
    "an encoding longer than the archive": (headed(-1, realsize=str(HUGE)), "is truncated"),
    "a path upwards": (named("../../escape"), "which is not an encoding"),
    "an absolute path": (named("/tmp/escape"), "which is not an encoding"),
    "a path upwards from the folder": (named(f"encodings/../{KEYS[3]}.safetensors"), "which is not an encoding"),
    "a link": (linked, "which is not an encoding"),
    "a flipped bit": (spoiled, "does not match its checksum"),
    "another's name": (swapped, "which is not its name"),
    "one too few": (lambda archive: rewrite(archive, members(archive)[:-1]), "is not complete: 3 of the 4 encodings"),
    "one twice": (lambda archive: rewrite(archive, [*members(archive), members(archive)[-1]]), "twice"),
    "no manifest": (lambda archive: rewrite(archive, members(archive)[1:]), "does not begin with a manifest"),
    "another version": (manifest(version=2), "archive version 2"),
    "another format": (manifest(format="zip"), "has another form"),
    "keys that are none": (manifest(encodings=7), "has another form"),
    "one that is not there": (manifest(encodings=[*KEYS, "0" * 64]), "is not complete"),
    "cut off": (lambda archive: archive.write_bytes(archive.read_bytes()[:-12_000]), "is not"),
    "empty": (lambda archive: archive.write_bytes(b""), "is not an archive"),
    "something else": (lambda archive: archive.write_bytes(b"hello " * 1000), "is not an archive"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_archive_is_refused_as_a_whole(archive: Path, tmp_path: Path, fault: str) -> None:
    """A bad archive raises an error with the reason, stores no encoding and creates no file."""
    change, words = BAD[fault]
    change(archive)
    with pytest.raises(StoreError, match=words):
        read_archive(archive, DiskTier(tmp_path / "to"))

    assert files(tmp_path / "to") == {}
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar", "from", "to"}


def test_a_limit_is_kept_while_importing(archive: Path, tmp_path: Path) -> None:
    """An import into a folder whose budget is too small reports how many encodings do not fit."""
    two = 2 * max(map(len, files(tmp_path / "from").values()))

    with pytest.raises(StoreError, match="no room for 4 of 4 encodings"):
        read_archive(archive, DiskTier(tmp_path / "none", budget_bytes=10))
    with pytest.raises(StoreError, match="no room for 2 of 4 encodings"):
        read_archive(archive, DiskTier(tmp_path / "some", budget_bytes=two))

    assert len(files(tmp_path / "some")) == 2


def test_an_empty_archive_is_refused(tmp_path: Path) -> None:
    """A tar file without members is refused."""
    tarfile.open(tmp_path / "a.tar", "w").close()

    with pytest.raises(StoreError, match="it is empty"):
        read_archive(tmp_path / "a.tar", DiskTier(tmp_path / "to"))
