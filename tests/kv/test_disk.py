"""A disk tier returns what was written, bit for bit, or raises a typed error."""

from __future__ import annotations

import errno
import logging
import os
import re
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from promptcache.diagnostics import CorruptEncoding, StoreError, TierUnavailable
from promptcache.kv import BlobTier, MemoryStore, StoredEncoding, Tier, TieredStore
from promptcache.kv.files import folder
from promptcache.kv.files.disk import DiskTier
from promptcache.kv.files.format import Header, pack
from tests.kv.processes import in_child
from tests.kv.stored import content, file_bytes, files_of, read, shape, small, write

ONE = small("one")
KEY = ONE.recipe.key


def file_of(folder: Path, key: str = KEY) -> Path:
    """Return the path of an encoding."""
    return folder / "encodings" / f"{key}.safetensors"


def tier_with_one(folder: Path) -> DiskTier:
    """Return a tier that holds `ONE`."""
    tier = DiskTier(folder)
    assert write(tier, ONE)
    return tier


def store_over(tier: DiskTier) -> TieredStore:
    """Return a store over a tier, with memory of its own."""
    return TieredStore(MemoryStore(replace(ONE.shape, device=torch.device("cpu"))), (tier,))


def test_the_disk_tier_is_a_tier(tmp_path: Path) -> None:
    """It implements the interface."""
    assert isinstance(DiskTier(tmp_path), BlobTier)
    assert DiskTier(tmp_path).kind is Tier.DISK


@pytest.mark.parametrize("can_map", [True, False])
def test_another_tier_reads_what_was_written(tmp_path: Path, can_map: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another tier of the same folder returns the same encoding, bit for bit, also where files cannot be mapped."""
    tier_with_one(tmp_path)
    later = DiskTier(str(tmp_path))
    if not can_map:
        monkeypatch.setattr("mmap.mmap", fail_with(errno.ENODEV))

    found = [read(later, KEY), read(later, KEY)]

    assert [content(each) for each in found if each is not None] == [content(ONE)] * 2
    assert list(later.keys()) == [KEY]
    assert later.nbytes() == file_of(tmp_path).stat().st_size == file_bytes(ONE)


def test_missing_encodings_are_misses(tmp_path: Path) -> None:
    """An empty or missing folder has no encodings, and every query returns that."""
    tier = DiskTier(tmp_path / "deep" / "folder")
    shutil.rmtree(tmp_path / "deep")

    assert read(tier, KEY) is None
    assert tier.header(KEY) is None
    tier.delete(KEY)
    assert list(tier.keys()) == []
    assert tier.nbytes() == 0
    assert list(tier.verify_all()) == []
    assert write(tier, ONE)


def test_foreign_files_are_not_listed(tmp_path: Path) -> None:
    """Files with other names among the encodings are not listed and not counted."""
    tier = tier_with_one(tmp_path)
    for name in ("notes.txt", "notes.safetensors", KEY, f"{KEY.upper()}.safetensors", f"{KEY}.safetensors.bak"):
        (tmp_path / "encodings" / name).write_text("foreign")

    assert list(tier.keys()) == [KEY]
    assert tier.nbytes() == file_bytes(ONE)


def test_the_first_file_stays(tmp_path: Path) -> None:
    """Writing a key again keeps the first file."""
    tier = tier_with_one(tmp_path)
    inode = file_of(tmp_path).stat().st_ino

    assert write(tier, small("one", seed=1))

    assert file_of(tmp_path).stat().st_ino == inode


def test_tensors_outlive_their_file(tmp_path: Path) -> None:
    """Tensors stay valid after the file and the tier are gone."""
    tier = tier_with_one(tmp_path)
    held = read(tier, KEY)

    for _ in range(2):
        tier.delete(KEY)

    assert read(tier, KEY) is None
    del tier
    assert held is not None
    assert content(held) == content(ONE)


def test_writing_to_tensors_does_not_change_the_file(tmp_path: Path) -> None:
    """Writing to a mapped tensor does not change the file."""
    tier = tier_with_one(tmp_path)
    held = read(tier, KEY)
    assert held is not None

    held.tensors["keys"].zero_()

    assert file_of(tmp_path).read_bytes() == pack(ONE)
    again = read(tier, KEY)
    assert again is not None
    assert content(again) == content(ONE)


def test_a_header_is_read_without_the_payload(tmp_path: Path) -> None:
    """`header` works on a file with a damaged payload and does not remove it."""
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


def put_instead(path: Path, put: Callable[[Path], object]) -> None:
    """Replace a file."""
    path.unlink()
    put(path)


def make_sparse(path: Path) -> None:
    """Make a sparse file of a terabyte whose header claims a huge size."""
    with path.open("wb") as file:
        file.write((2**40 - 8).to_bytes(8, "little") + pack(ONE)[8:])
        file.truncate(2**40)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: os.truncate(path, file_bytes(ONE) - 1),
    "truncated in its header": lambda path: os.truncate(path, 100),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: os.truncate(path, file_bytes(ONE) + 1),
    "flipped in its payload": lambda path: flip(path, -1),
    "flipped in its metadata": lambda path: flip(path, 300),
    "foreign": lambda path: path.write_bytes(b"x" * 1000),
    "another encoding": lambda path: path.write_bytes(pack(small("two"))),
    "enormous": make_sparse,
    "a link out of the folder": lambda path: put_instead(path, lambda it: it.symlink_to("/etc/passwd")),
    "a link to itself": lambda path: put_instead(path, lambda it: it.symlink_to(it)),
    "a link to a whole file": lambda path: (path.rename(path.parent.parent / "w"), path.symlink_to("../w")),
    "a pipe": lambda path: put_instead(path, os.mkfifo),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_deleted_and_written_again(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged file is reported and logged once, and deleted. Its key can be written again."""
    tier = tier_with_one(tmp_path)
    DAMAGE[damage](file_of(tmp_path))
    store = store_over(tier)

    with caplog.at_level(logging.WARNING):
        found, again = store.get(KEY), store.get(KEY)

    assert (found.handle, again.handle, again.faults) == (None, None, ())
    (fault,) = found.faults
    assert fault.startswith(f"disk: {tmp_path}")
    assert [f"disk: {record.getMessage()}" for record in caplog.records] == [fault]
    assert files_of(tmp_path) == []
    store.put(ONE.recipe, ONE.tensors["keys"], ONE.tensors["values"])
    healed = read(tier, KEY)
    assert healed is not None
    assert content(healed) == content(ONE)


def test_a_folder_in_place_of_a_file_is_a_fault(tmp_path: Path) -> None:
    """A folder with the name of an encoding stays, because it may hold anything. Lookups and writes report it."""
    tier = tier_with_one(tmp_path)
    put_instead(file_of(tmp_path), lambda it: (it.mkdir(), (it / "x").touch()))
    store = store_over(tier)

    assert "is not a file" in store.get(KEY).faults[0]
    store.put(ONE.recipe, ONE.tensors["keys"], ONE.tensors["values"])
    assert "Is a directory" in store.faults()[0]
    assert store.lacking([KEY]) == {str(tmp_path): {KEY}}
    assert (file_of(tmp_path) / "x").exists()


@pytest.mark.parametrize("damage", DAMAGE)
def test_verify_all_finds_every_damage(tmp_path: Path, damage: str) -> None:
    """`verify_all` reports every damaged file and removes none."""
    tier = tier_with_one(tmp_path)
    write(tier, small("two"))
    (tmp_path / "encodings" / "notes.txt").write_text("foreign")
    DAMAGE[damage](file_of(tmp_path))
    names = files_of(tmp_path)

    verdicts = list(tier.verify_all())

    assert [verdict.name for verdict in verdicts] == names == files_of(tmp_path)
    assert [verdict.name for verdict in verdicts if verdict.foreign] == ["notes.txt"]
    bad = [verdict.name for verdict in verdicts if verdict.fault is not None]
    assert bad == [f"{KEY}.safetensors"]


def test_kv_of_another_shape_is_deleted(tmp_path: Path) -> None:
    """A file with another shape than that of the model is a fault, and deleted."""
    tier = tier_with_one(tmp_path)
    assert store_over(tier).get(KEY).handle is not None
    store = TieredStore(MemoryStore(shape(torch.float16)), (tier,))

    (fault,) = store.get(KEY).faults

    assert re.search(r"holds KV of float32 \[2, 1, 8\].*this model's is float16 \[2, 1, 8\]", fault)
    assert files_of(tmp_path) == []


def test_damaged_files_that_cannot_be_deleted_are_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged file that cannot be deleted does not count as stored, and is replaced as soon as that is possible."""
    tier = tier_with_one(tmp_path)
    flip(file_of(tmp_path), -1)
    store = store_over(tier)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", fail_with(errno.EROFS))
        assert "does not match its checksum" in store.get(KEY).faults[0]
        store.put(ONE.recipe, ONE.tensors["keys"], ONE.tensors["values"])
        assert "Read-only file system" in store.faults()[0]
        assert store.lacking([KEY]) == {str(tmp_path): {KEY}}

    store.put(ONE.recipe, ONE.tensors["keys"], ONE.tensors["values"])

    assert store.lacking([KEY]) == {}
    assert read(tier, KEY) is not None


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


def test_no_memory_is_taken_for_kv_of_another_shape(tmp_path: Path) -> None:
    """A sparse file of a terabyte with a valid header is refused by its shape, before its payload is read."""
    header = Header(recipe=ONE.recipe, shape=shape(head_dim=2**32), facts={}, sha256="0" * 64)
    tier = tier_with_one(tmp_path)
    head = header.to_bytes()
    file_of(tmp_path).write_bytes(head)
    os.truncate(file_of(tmp_path), len(head) + header.payload_bytes)

    (fault,) = store_over(tier).get(KEY).faults

    assert "this model's is" in fault or "Cannot allocate memory" in fault


def test_a_held_lock_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that another program never releases delays one write; the next ones fail at once, until it is free."""
    monkeypatch.setattr(folder, "LOCK_TIMEOUT_S", 0.5)
    tier = DiskTier(tmp_path)
    waited = []
    with FileLock(tmp_path / "lock"):
        for _ in range(3):
            started = time.monotonic()
            with pytest.raises(TierUnavailable, match="another process held its lock"):
                write(tier, ONE)
            waited.append(time.monotonic() - started)

    assert waited[0] >= 0.5
    assert max(waited[1:]) < 0.5
    assert write(tier, ONE)


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

    assert write(tier, ONE)


def test_a_file_evicted_while_it_is_opened_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is evicted between `stat` and `open` is a cache miss."""
    tier = tier_with_one(tmp_path)
    opened = os.open

    def slow_open(path: object, *rest: object, **named: object) -> int:
        if path == file_of(tmp_path):
            file_of(tmp_path).unlink()
        return opened(path, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", slow_open)

    assert read(tier, KEY) is None


def test_a_file_is_verified_at_every_read(tmp_path: Path) -> None:
    """A file that was damaged after it was read is found."""
    tier = tier_with_one(tmp_path)
    read(tier, KEY)
    data = bytearray(file_of(tmp_path).read_bytes())
    data[-1] ^= 1
    put_instead(file_of(tmp_path), lambda path: path.write_bytes(data))

    with pytest.raises(CorruptEncoding, match="does not match its checksum"):
        read(tier, KEY)


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
    "quota": ("ftruncate", errno.EDQUOT, "Disk quota exceeded"),
    "no room": ("write", errno.ENOSPC, "No space left on device"),
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
            write(tier, small("two"))

    if reason is not None:
        assert str(error.value) == f"{tmp_path}: cannot write: {reason}"
    assert list((tmp_path / "incoming").iterdir()) == []
    assert files_of(tmp_path) == [f"{KEY}.safetensors"]
    assert write(tier, small("two"))


def test_a_write_above_the_size_limit_of_the_process_fails(tmp_path: Path) -> None:
    """A write that the system refuses raises `TierUnavailable` and leaves no file."""
    tier = DiskTier(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(TierUnavailable, match="cannot write: File too large"):
            write(tier, small("large", 1000))
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
    found = read(tier, KEY)
    results: dict[str, object] = {"read": found is not None and content(found) == content(ONE)}
    for name, operation in (
        ("write", lambda: write(tier, small("three"))),
        ("delete", lambda: tier.delete(KEY)),
        ("gc", tier.gc),
        ("bad", lambda: read(tier, small("two").recipe.key)),
    ):
        try:
            results[name] = operation()
        except StoreError as error:
            results[name] = type(error).__name__
    results["lock"] = tier.try_lock(KEY, 0.1) is not None
    return results


@pytest.fixture
def open_path() -> Iterator[Path]:
    """Return a path that every user can reach. Folders of pytest belong to one user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "tier"


@pytest.mark.process
def test_a_read_only_folder_is_read(open_path: Path) -> None:
    """A read-only folder can be read; other operations raise a typed error."""
    tier = tier_with_one(open_path)
    write(tier, small("two"))
    flip(file_of(open_path, small("two").recipe.key), -1)
    for path in (open_path, *open_path.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)

    results = in_child(use_read_only, str(open_path))

    for path in (open_path, *open_path.rglob("*")):
        path.chmod(0o755)
    refused = dict.fromkeys(("write", "delete", "gc"), "TierUnavailable")
    assert results == {"read": True, **refused, "bad": "CorruptEncoding", "lock": True}


def read_closed(folder: str) -> list[object]:
    """Look up a file without permission, put the encoding again, and return what happens."""
    drop_rights()
    tier = DiskTier(folder)
    store = store_over(tier)
    faults = store.get(KEY).faults
    store.put(ONE.recipe, ONE.tensors["keys"], ONE.tensors["values"])
    return [*faults, read(tier, KEY) is not None]


@pytest.mark.process
def test_an_unreadable_file_is_replaced(open_path: Path) -> None:
    """A file without read permission is deleted and written again."""
    tier_with_one(open_path)
    for path in (open_path, *open_path.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    file_of(open_path).chmod(0)

    results = in_child(read_closed, str(open_path))

    assert results == [f"disk: {file_of(open_path)}: cannot be read: Permission denied", True]


def test_torch_computes_with_mapped_tensors(tmp_path: Path) -> None:
    """Mapped tensors are aligned and work in torch without warnings."""
    stored = small("sum", 100)
    tier = DiskTier(tmp_path)
    write(
        tier,
        StoredEncoding(
            recipe=stored.recipe,
            shape=stored.shape,
            tensors={
                "keys": torch.ones(2, 1, 100, 8),
                "values": torch.ones(2, 1, 100, 8),
            },
        ),
    )

    found = read(tier, stored.recipe.key)

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
    write(tier, ONE)
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert read(tier, ONE.recipe.key) is not None
    assert write(tier, small("another"))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert str(tier) == "kept"


def test_files_that_others_removed_do_not_count(tmp_path: Path) -> None:
    """A file that another tier removed does not count against the budget."""
    two, three = small("two"), small("three")
    budget = 2 * max(map(file_bytes, (ONE, two, three)))
    first, second = (DiskTier(tmp_path, budget_bytes=budget) for _ in range(2))
    write(first, ONE)
    write(second, two)
    for _ in range(9):
        read(second, KEY)

    first.delete(KEY)
    write(second, three)

    assert set(second.keys()) == {two.recipe.key, three.recipe.key}


def test_damaged_files_are_evicted(tmp_path: Path) -> None:
    """A budget of 0 evicts damaged files as well."""
    tier_with_one(tmp_path)
    file_of(tmp_path).write_bytes(b"damaged")

    assert list(DiskTier(tmp_path, budget_bytes=0).keys()) == []


def test_a_file_that_is_cut_while_it_is_opened_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is truncated after its header was read is a fault."""
    tier, original = tier_with_one(tmp_path), folder.read_header

    def cut(*found: object) -> object:
        header = original(*found)  # type: ignore[arg-type]
        os.truncate(file_of(tmp_path), 700)
        return header

    monkeypatch.setattr(folder, "read_header", cut)

    assert "has 700 bytes" in store_over(tier).get(KEY).faults[0]


@pytest.mark.parametrize(("number", "is_damage"), [(errno.EIO, True), (errno.EMFILE, False)])
def test_only_errors_of_one_file_are_damage(
    tmp_path: Path, number: int, is_damage: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error of one file, the file is deleted. Other system errors are faults of the tier, and it stays."""
    tier = tier_with_one(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", fail_with(number))
        (fault,) = store_over(tier).get(KEY).faults

    assert os.strerror(number) in fault
    assert (files_of(tmp_path) == []) == is_damage
