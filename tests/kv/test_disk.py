"""A disk tier returns what was written, bit for bit, or raises a typed error."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from promptcache.diagnostics import CorruptEncoding, StoreError, TierUnavailable
from promptcache.kv import BlobTier, StoredEncoding, Tier
from promptcache.kv.files import folder
from promptcache.kv.files.blob_tier import Verify
from promptcache.kv.files.disk import DiskTier
from promptcache.kv.files.format import Header
from tests.kv.processes import in_child
from tests.kv.stored import content, file_bytes, files_of, random_stored, recipe, shape, small, whole_file

ONE = small("one")
KEY = ONE.recipe.key


def file_of(folder: Path, key: str = KEY) -> Path:
    """Return the path of an encoding."""
    return folder / "encodings" / f"{key}.safetensors"


def tier_with_one(folder: Path, **options: object) -> DiskTier:
    """Return a tier that holds `ONE`."""
    tier = DiskTier(folder, **options)  # type: ignore[arg-type]
    assert tier.write(ONE)
    return tier


def quarantined(folder: Path) -> list[str]:
    """Return the names of the files in quarantine."""
    return sorted(path.name for path in (folder / "quarantine").iterdir() if path.name != "log.jsonl")


def test_the_disk_tier_is_a_tier(tmp_path: Path) -> None:
    """It implements the interface."""
    assert isinstance(DiskTier(tmp_path), BlobTier)
    assert DiskTier(tmp_path).kind is Tier.DISK


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("verify", Verify)
def test_another_tier_reads_what_was_written(tmp_path: Path, verify: Verify, mmap: bool) -> None:
    """Another tier of the same folder returns the same encoding, bit for bit, in every mode."""
    tier_with_one(tmp_path)
    later = DiskTier(str(tmp_path), verify=str(verify), mmap=mmap)

    found = [later.read(KEY), later.read(KEY)]

    assert [content(each) for each in found if each is not None] == [content(ONE)] * 2
    assert list(later.keys()) == [KEY]
    assert later.nbytes() == file_of(tmp_path).stat().st_size == file_bytes(ONE)


def test_missing_encodings_are_misses(tmp_path: Path) -> None:
    """An empty or missing folder has no encodings, and every query returns that."""
    tier = DiskTier(tmp_path / "deep" / "folder")
    shutil.rmtree(tmp_path / "deep")

    assert tier.read(KEY) is None
    assert tier.header(KEY) is None
    assert not tier.delete(KEY)
    assert list(tier.keys()) == []
    assert tier.nbytes() == 0
    assert list(tier.verify_all()) == []
    assert tier.write(ONE)


def test_foreign_files_are_not_listed(tmp_path: Path) -> None:
    """Files with other names among the encodings are not listed and not counted."""
    tier = tier_with_one(tmp_path)
    for name in ("notes.txt", "notes.safetensors", KEY, f"{KEY.upper()}.safetensors", f"{KEY}.safetensors.bak"):
        (tmp_path / "encodings" / name).write_text("foreign")

    assert list(tier.keys()) == [KEY]
    assert tier.nbytes() == file_bytes(ONE)


def test_files_of_another_version_are_moved_to_quarantine_once(tmp_path: Path) -> None:
    """Opening a folder moves files of another format version to quarantine, once."""
    old = "0" * 64
    tier_with_one(tmp_path)
    file_of(tmp_path, old).write_bytes(file_of(tmp_path).read_bytes().replace(b'"version":"3"', b'"version":"2"'))
    (tmp_path / "version").unlink()

    assert list(DiskTier(tmp_path).keys()) == [KEY]
    (entry,) = (json.loads(line) for line in (tmp_path / "quarantine" / "log.jsonl").read_text().splitlines())
    assert (entry["file"], entry["reason"]) == (f"{old}.safetensors", "outdated: format version 2, now 3")
    assert (tmp_path / "version").read_text() == "3\n"


def test_the_first_file_stays(tmp_path: Path) -> None:
    """Writing a key again keeps the first file."""
    tier = tier_with_one(tmp_path)
    inode = file_of(tmp_path).stat().st_ino

    assert tier.write(small("one", seed=1))

    assert file_of(tmp_path).stat().st_ino == inode


@pytest.mark.parametrize("mmap", [True, False])
def test_tensors_outlive_their_file(tmp_path: Path, mmap: bool) -> None:
    """Tensors stay valid after the file and the tier are gone."""
    tier = tier_with_one(tmp_path, mmap=mmap)
    held = tier.read(KEY)

    assert tier.delete(KEY)
    assert not tier.delete(KEY)

    assert tier.read(KEY) is None
    del tier
    assert held is not None
    assert content(held) == content(ONE)


def test_writing_to_tensors_does_not_change_the_file(tmp_path: Path) -> None:
    """Writing to a mapped tensor does not change the file."""
    tier = tier_with_one(tmp_path)
    held = tier.read(KEY)
    assert held is not None

    held.tensors["keys"].zero_()

    assert file_of(tmp_path).read_bytes() == whole_file(ONE)
    again = tier.read(KEY)
    assert again is not None
    assert content(again) == content(ONE)


def test_a_header_is_read_without_the_payload(tmp_path: Path) -> None:
    """`header` works on a file with a damaged payload and does not move it."""
    tier = tier_with_one(tmp_path)
    flip(file_of(tmp_path), -1)

    header = tier.header(KEY)

    assert header is not None
    assert header.recipe == ONE.recipe
    assert files_of(tmp_path) == [f"{KEY}.safetensors"]


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "A" * 64, KEY + "0", KEY[:-1] + "/"])
def test_text_that_is_not_a_key_is_refused(tmp_path: Path, key: str) -> None:
    """Text that is not a key raises `StoreError`, so no path leads out of the folder."""
    tier = DiskTier(tmp_path)

    for ask in (tier.read, tier.delete, tier.header):
        with pytest.raises(StoreError, match="a key, 64 hexadecimal digits, is expected"):
            ask(key)


def test_the_path_of_a_file_is_refused(tmp_path: Path) -> None:
    """The path of a file is refused when the tier is created."""
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError, match="is not a folder"):
        DiskTier(tmp_path / "file")


def flip(path: Path, position: int) -> None:
    """Flip a bit of a file without changing its size and times."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(path: Path, put: Callable[[Path], object]) -> None:
    """Replace a file."""
    path.unlink()
    put(path)


def make_sparse(path: Path) -> None:
    """Make a sparse file of a terabyte whose header claims a huge size."""
    with path.open("wb") as file:
        file.write((2**40 - 8).to_bytes(8, "little") + whole_file(ONE)[8:])
        file.truncate(2**40)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: os.truncate(path, file_bytes(ONE) - 1),
    "truncated in its header": lambda path: os.truncate(path, 100),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: os.truncate(path, file_bytes(ONE) + 1),
    "flipped in its payload": lambda path: flip(path, -1),
    "flipped in its metadata": lambda path: flip(path, 300),
    "foreign": lambda path: path.write_bytes(b"x" * 1000),
    "another encoding": lambda path: path.write_bytes(whole_file(small("two"))),
    "enormous": make_sparse,
    "a folder": lambda path: replace(path, Path.mkdir),
    "a folder with a file": lambda path: replace(path, lambda it: (it.mkdir(), (it / "x").touch())),
    "a link out of the folder": lambda path: replace(path, lambda it: it.symlink_to("/etc/passwd")),
    "a link to itself": lambda path: replace(path, lambda it: it.symlink_to(it)),
    "a link to a whole file": lambda path: (path.rename(path.parent.parent / "w"), path.symlink_to("../w")),
    "a pipe": lambda path: replace(path, os.mkfifo),
}


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("damage", DAMAGE)
def test_corrupt_files_are_moved_to_quarantine_once(tmp_path: Path, damage: str, mmap: bool) -> None:
    """A corrupt file is reported and logged once, moved to quarantine, and can be written again."""
    tier = tier_with_one(tmp_path, mmap=mmap)
    DAMAGE[damage](file_of(tmp_path))

    with pytest.raises(CorruptEncoding, match=str(file_of(tmp_path))) as error:
        tier.read(KEY)

    assert tier.read(KEY) is None
    assert files_of(tmp_path) == []
    log = [json.loads(line) for line in (tmp_path / "quarantine" / "log.jsonl").read_text().splitlines()]
    assert [(line["file"], line["reason"]) for line in log] == [(f"{KEY}.safetensors", str(error.value))]
    assert len(quarantined(tmp_path)) == 1
    assert tier.write(ONE)
    again = tier.read(KEY)
    assert again is not None
    assert content(again) == content(ONE)


@pytest.mark.parametrize("damage", DAMAGE)
def test_verify_all_finds_every_damage(tmp_path: Path, damage: str) -> None:
    """`verify_all` reports every damaged file and moves none."""
    tier = tier_with_one(tmp_path)
    tier.write(small("two"))
    (tmp_path / "encodings" / "notes.txt").write_text("foreign")
    DAMAGE[damage](file_of(tmp_path))
    names = files_of(tmp_path)

    verdicts = list(tier.verify_all())

    assert [verdict.name for verdict in verdicts] == names == files_of(tmp_path)
    assert [verdict.name for verdict in verdicts if verdict.foreign] == ["notes.txt"]
    bad = [verdict.name for verdict in verdicts if verdict.fault is not None]
    assert bad == [f"{KEY}.safetensors"]


def test_verify_all_finds_kv_of_another_shape(tmp_path: Path) -> None:
    """Files whose shape differs from most files of their model are bad; if two shapes tie, both are."""
    tier = DiskTier(tmp_path)
    for number, length in enumerate((3, 4, 5)):
        tier.write(random_stored(recipe("model", length), shape(), seed=number))
    odd = [recipe("model", 6), recipe("model", 7)]
    tier.write(random_stored(odd[0], shape(torch.float16)))
    tier.write(random_stored(odd[1], shape(head_dim=16)))
    pair = [recipe("other model", 3), recipe("other model", 4)]
    tier.write(random_stored(pair[0], shape()))
    tier.write(random_stored(pair[1], shape(torch.float64)))

    bad = {verdict.name: verdict.fault for verdict in tier.verify_all() if verdict.fault is not None}

    assert set(bad) == {f"{each.key}.safetensors" for each in (*odd, *pair)}
    assert "float16" in str(bad[f"{odd[0].key}.safetensors"])
    assert "float32" in str(bad[f"{odd[0].key}.safetensors"])


def test_kv_of_another_shape_is_moved_to_quarantine(tmp_path: Path) -> None:
    """A file with another shape than the requested one is moved to quarantine."""
    tier = tier_with_one(tmp_path)
    assert tier.read(KEY) is not None
    assert tier.read(KEY, shape()) is not None

    with pytest.raises(CorruptEncoding, match=r"holds KV of float32 \[2, 1, 8\].*this model's is float16 \[2, 1, 8\]"):
        tier.read(KEY, shape(torch.float16))

    assert tier.read(KEY) is None
    assert quarantined(tmp_path)[0].startswith(f"{KEY}.safetensors.")


def test_corrupt_files_that_cannot_be_moved_are_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A corrupt file that cannot be moved is not listed, and can be replaced."""
    tier = tier_with_one(tmp_path)
    flip(file_of(tmp_path), -1)
    monkeypatch.setattr(tier._folder, "move_to_quarantine", read_only)
    with pytest.raises(CorruptEncoding):
        tier.read(KEY)

    assert list(tier.keys()) == []
    assert tier.write(ONE)
    assert list(tier.keys()) == [KEY]


def read_only(*_: object) -> bool:
    """Fail like a read-only file system."""
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_verify_all_leaves_foreign_files_alone(tmp_path: Path) -> None:
    """Files without the suffix are foreign and not opened; files with it must be encodings."""
    tier = tier_with_one(tmp_path)
    place = tmp_path / "encodings"
    for name in ("README", ".DS_Store", "notes.safetensors", f"{KEY}.safetensors.bak"):
        (place / name).write_text("foreign")
    os.mkfifo(place / "pipe")
    (place / "folder").mkdir()
    (place / "link").symlink_to("/nowhere")

    verdicts = {verdict.name: verdict for verdict in tier.verify_all()}

    foreign = {"README", ".DS_Store", f"{KEY}.safetensors.bak", "pipe", "folder", "link"}
    assert {name for name, verdict in verdicts.items() if verdict.foreign} == foreign
    assert {name for name, verdict in verdicts.items() if verdict.fault is not None} == {"notes.safetensors"}
    assert len(verdicts) == len(foreign) + 2
    assert tier.gc() == ()
    assert len(files_of(tmp_path)) == len(verdicts)


def test_a_replaced_file_is_not_moved_to_quarantine(tmp_path: Path) -> None:
    """A good file that another process writes in place of a bad one is not moved to quarantine."""
    tier, other = tier_with_one(tmp_path), DiskTier(tmp_path)
    flip(file_of(tmp_path), -1)
    move = tier._folder.move_to_quarantine

    def too_late(*found: object) -> bool:
        other.delete(KEY)
        other.write(ONE)
        return move(*found)  # type: ignore[arg-type]

    tier._folder.move_to_quarantine = too_late  # type: ignore[method-assign]
    found = tier.read(KEY)

    assert found is not None
    assert content(found) == content(ONE)
    assert quarantined(tmp_path) == []


def test_a_bad_file_that_changes_all_the_time_is_a_fault(tmp_path: Path) -> None:
    """A bad file that is replaced by another bad one at every look is reported, and not looked at for ever."""
    tier = tier_with_one(tmp_path)
    move = tier._folder.move_to_quarantine

    def replaced(*found: object) -> bool:
        file_of(tmp_path).unlink()
        file_of(tmp_path).write_bytes(b"x" * 1000)
        return move(*found)  # type: ignore[arg-type]

    tier._folder.move_to_quarantine = replaced  # type: ignore[method-assign]
    flip(file_of(tmp_path), -1)

    with pytest.raises(CorruptEncoding):
        tier.read(KEY)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/full")])
def test_a_bad_file_stays_where_its_move_cannot_be_logged(tmp_path: Path, make: Callable[[Path], object]) -> None:
    """If the log of the quarantine is no file, a bad file is reported once, ignored, and replaced by the next write."""
    tier = tier_with_one(tmp_path)
    flip(file_of(tmp_path), -1)
    make(tmp_path / "quarantine" / "log.jsonl")

    with pytest.raises(CorruptEncoding) as caught:
        tier.read(KEY)

    assert "is ignored from now on" in caught.value.__notes__[0]
    assert tier.read(KEY) is None
    assert tier.write(ONE)
    found = tier.read(KEY)
    assert found is not None
    assert content(found) == content(ONE)


@pytest.mark.parametrize("mmap", [True, False])
def test_no_memory_is_taken_for_kv_of_another_shape(tmp_path: Path, mmap: bool) -> None:
    """A sparse file of a terabyte with a valid header is refused by its shape, before its payload is read."""
    header = Header(
        recipe=ONE.recipe, shape=shape(head_dim=2**32), facts={}, payload_sha256=hashlib.sha256().hexdigest()
    )
    tier = tier_with_one(tmp_path, mmap=mmap)
    head = header.to_bytes()
    file_of(tmp_path).write_bytes(head)
    os.truncate(file_of(tmp_path), len(head) + header.payload_bytes)

    with pytest.raises(CorruptEncoding, match="this model's is"):
        tier.read(KEY, ONE.shape)


def test_a_held_lock_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that another program never releases delays one write; the next ones fail at once, until it is free."""
    monkeypatch.setattr(folder, "LOCK_TIMEOUT_S", 0.5)
    tier = DiskTier(tmp_path)
    waited = []
    with FileLock(tmp_path / "lock"):
        for _ in range(3):
            started = time.monotonic()
            with pytest.raises(TierUnavailable, match="another process held its lock"):
                tier.write(ONE)
            waited.append(time.monotonic() - started)

    assert waited[0] >= 0.5
    assert max(waited[1:]) < 0.5
    assert tier.write(ONE)


def test_a_file_of_another_user_hinders_no_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unfinished file that may not be opened stays, and encodings are written."""
    tier = DiskTier(tmp_path)
    (tmp_path / "incoming" / "other").touch()
    opened = os.open

    def refuse(path: object, *how: int) -> int:
        if str(path).endswith("other"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, *how)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)

    assert tier.write(ONE)


def test_a_file_evicted_while_it_is_opened_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is evicted between `stat` and `open` is a cache miss."""
    tier = tier_with_one(tmp_path)
    opened = os.open

    def slow_open(path: object, *rest: object, **named: object) -> int:
        if path == file_of(tmp_path):
            file_of(tmp_path).unlink()
        return opened(path, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", slow_open)

    assert tier.read(KEY) is None


@pytest.mark.parametrize(
    ("verify", "raises"), [(Verify.FIRST, False), (Verify.ALWAYS, True), (Verify.NEVER, False)], ids=str
)
def test_payloads_are_verified_as_configured(tmp_path: Path, verify: Verify, raises: bool) -> None:
    """Only `always` verifies a payload after its first use."""
    tier = tier_with_one(tmp_path, verify=verify)
    tier.read(KEY)
    flip(file_of(tmp_path), -1)

    if raises:
        with pytest.raises(CorruptEncoding, match="payload does not match"):
            tier.read(KEY)
    else:
        assert tier.read(KEY) is not None


def test_a_replaced_file_is_verified_again(tmp_path: Path) -> None:
    """A file that was replaced is verified again."""
    tier = tier_with_one(tmp_path)
    tier.read(KEY)
    data = bytearray(file_of(tmp_path).read_bytes())
    data[-1] ^= 1
    replace(file_of(tmp_path), lambda path: path.write_bytes(data))

    with pytest.raises(CorruptEncoding, match="payload does not match"):
        tier.read(KEY)


def fail_with(number: int, *, after: int = 0) -> Callable[..., object]:
    """Return a system call that fails after some calls."""
    calls = 0

    def call(*_: object, **__: object) -> object:
        nonlocal calls
        calls += 1
        if calls > after:
            raise OSError(number, os.strerror(number))
        return None

    return call


REFUSALS = {
    "no room": ("posix_fallocate", errno.ENOSPC, "No space left on device"),
    "quota": ("ftruncate", errno.EDQUOT, "Disk quota exceeded"),
    "no room after all": ("write", errno.ENOSPC, "No space left on device"),
    "disk broken": ("fsync", errno.EIO, "Input/output error"),
    "interrupted": ("write", None, None),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_failed_write_leaves_no_file(tmp_path: Path, refusal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed write names the folder and the reason, leaves no file, and a later write succeeds."""
    call, number, reason = REFUSALS[refusal]
    tier = tier_with_one(tmp_path)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, call, interrupt if number is None else fail_with(number))
        with pytest.raises(KeyboardInterrupt if number is None else TierUnavailable) as error:
            tier.write(small("two"))

    if reason is not None:
        assert str(error.value) == f"{tmp_path}: cannot write: {reason}"
    assert list((tmp_path / "incoming").iterdir()) == []
    assert files_of(tmp_path) == [f"{KEY}.safetensors"]
    assert tier.write(small("two"))


def test_a_write_above_the_size_limit_of_the_process_fails(tmp_path: Path) -> None:
    """A write that the system refuses raises `TierUnavailable` and leaves no file."""
    tier = DiskTier(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(TierUnavailable, match="cannot write: File too large"):
            tier.write(small("large", 1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert list((tmp_path / "incoming").iterdir()) == []


def drop_rights() -> None:
    """Drop the rights of root, which ignores permissions."""
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)


def use_read_only(folder: str) -> dict[str, object]:
    """Call every method in a read-only folder and return the results."""
    drop_rights()
    tier = DiskTier(folder, budget_bytes=1)
    two = small("two").recipe.key
    found = tier.read(KEY)
    results: dict[str, object] = {"read": found is not None and content(found) == content(ONE)}
    for name, operation in (
        ("write", lambda: tier.write(small("three"))),
        ("delete", lambda: tier.delete(KEY)),
        ("gc", tier.gc),
        ("bad", lambda: tier.read(two)),
        ("bad again", lambda: tier.read(two)),
    ):
        try:
            results[name] = operation()
        except StoreError as error:
            results[name] = type(error).__name__
    with tier.claim(KEY, 0.1) as held:
        results["claim"] = held
    return results


@pytest.fixture
def open_path() -> Iterator[Path]:
    """Return a path that every user can reach. Folders of pytest belong to one user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "tier"


@pytest.mark.process
def test_a_read_only_folder_is_read(open_path: Path) -> None:
    """A read-only folder can be read; other operations raise a typed error, and a corrupt file is reported once."""
    tier = tier_with_one(open_path)
    tier.write(small("two"))
    flip(file_of(open_path, small("two").recipe.key), -1)
    for path in (open_path, *open_path.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)

    results = in_child(use_read_only, str(open_path))

    for path in (open_path, *open_path.rglob("*")):
        path.chmod(0o755)
    refused = dict.fromkeys(("write", "delete", "gc"), "TierUnavailable")
    assert results == {"read": True, **refused, "bad": "CorruptEncoding", "bad again": None, "claim": True}


def read_closed(folder: str) -> list[object]:
    """Read a file without permission and return what happens."""
    drop_rights()
    tier = DiskTier(folder)
    try:
        tier.read(KEY)
    except CorruptEncoding as error:
        return [str(error), tier.read(KEY), tier.write(ONE)]
    return []


@pytest.mark.process
def test_an_unreadable_file_is_moved_to_quarantine(open_path: Path) -> None:
    """A file without read permission is moved to quarantine and can be written again."""
    tier_with_one(open_path)
    for path in (open_path, *open_path.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    file_of(open_path).chmod(0)

    results = in_child(read_closed, str(open_path))

    assert results == [f"{file_of(open_path)}: cannot be read: Permission denied", None, True]


def test_torch_computes_with_mapped_tensors(tmp_path: Path) -> None:
    """Mapped tensors are aligned and work in torch without warnings."""
    stored = small("sum", 100)
    tier = DiskTier(tmp_path)
    tier.write(
        StoredEncoding(
            recipe=stored.recipe,
            shape=stored.shape,
            tensors={
                "keys": torch.ones(2, 1, 100, 8),
                "values": torch.ones(2, 1, 100, 8),
            },
        )
    )

    found = tier.read(stored.recipe.key)

    assert found is not None
    assert float((found.tensors["keys"] @ found.tensors["values"].mT).sum()) == 2 * 100 * 100 * 8
    assert all(tensor.data_ptr() % 64 == 0 for tensor in found.tensors.values())


def test_the_name_of_a_tier_is_its_folder(tmp_path: Path) -> None:
    """`str` of a tier is its folder."""
    assert str(DiskTier(tmp_path)) == str(tmp_path)


def test_a_relative_folder_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tier with a relative path keeps its folder when the program changes its working directory."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    tier = DiskTier("kept")
    tier.write(ONE)
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert tier.read(ONE.recipe.key) is not None
    assert tier.write(small("another"))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert str(tier) == "kept"


def test_files_that_others_removed_do_not_count(tmp_path: Path) -> None:
    """A file that another tier removed does not count against the budget."""
    two, three = small("two"), small("three")
    budget = 2 * max(map(file_bytes, (ONE, two, three)))
    first, second = (DiskTier(tmp_path, budget_bytes=budget) for _ in range(2))
    first.write(ONE)
    second.write(two)
    for _ in range(9):
        second.read(KEY)

    first.delete(KEY)
    second.write(three)

    assert set(second.keys()) == {two.recipe.key, three.recipe.key}


def test_damaged_files_are_evicted(tmp_path: Path) -> None:
    """A budget of 0 evicts damaged files as well."""
    tier_with_one(tmp_path)
    file_of(tmp_path).write_bytes(b"damaged")

    assert list(DiskTier(tmp_path, budget_bytes=0).keys()) == []
