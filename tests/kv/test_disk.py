"""A folder gives back what was put into it, to the last bit, or says that it cannot."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from promptcache.diagnostics import CorruptEncoding, StoreError, TierUnavailable
from promptcache.kv import BlobTier, StoredEncoding, Tier
from promptcache.kv.files.disk import DiskTier, Verify
from tests.kv.processes import in_child
from tests.kv.stored import content, file_bytes, files_of, random_stored, recipe, shape, small, whole_file

ONE = small("one")
KEY = ONE.recipe.key


def file_of(folder: Path, key: str = KEY) -> Path:
    """Where an encoding stands."""
    return folder / "encodings" / f"{key}.safetensors"


def tier_with_one(folder: Path, **options: object) -> DiskTier:
    """A tier that holds `ONE`."""
    tier = DiskTier(folder, **options)  # type: ignore[arg-type]
    assert tier.write(ONE)
    return tier


def quarantined(folder: Path) -> list[str]:
    """What was set aside."""
    return sorted(path.name for path in (folder / "quarantine").iterdir() if path.name != "log.jsonl")


def test_the_disk_tier_is_a_tier(tmp_path: Path) -> None:
    """It has every method of the protocol."""
    assert isinstance(DiskTier(tmp_path), BlobTier)
    assert DiskTier(tmp_path).kind is Tier.DISK


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("verify", Verify)
def test_what_is_written_is_read_by_whoever_comes_later(tmp_path: Path, verify: Verify, mmap: bool) -> None:
    """Another tier in the same folder gives the same encoding, bit for bit, however it reads."""
    tier_with_one(tmp_path)
    later = DiskTier(str(tmp_path), verify=str(verify), mmap=mmap)

    found = [later.read(KEY), later.read(KEY)]

    assert [content(each) for each in found if each is not None] == [content(ONE)] * 2
    assert list(later.keys()) == [KEY]
    assert later.nbytes() == file_of(tmp_path).stat().st_size == file_bytes(ONE)


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    """An empty folder, or one that does not exist, holds nothing."""
    tier = DiskTier(tmp_path / "deep" / "folder")
    shutil.rmtree(tmp_path / "deep")

    assert tier.read(KEY) is None
    assert tier.header(KEY) is None
    assert not tier.delete(KEY)
    assert list(tier.keys()) == []
    assert tier.nbytes() == 0
    assert list(tier.verify_all()) == []
    assert tier.write(ONE)


def test_foreign_files_are_no_keys(tmp_path: Path) -> None:
    """Whatever else lies among the encodings is neither listed nor counted."""
    tier = tier_with_one(tmp_path)
    for name in ("notes.txt", "notes.safetensors", KEY, f"{KEY.upper()}.safetensors", f"{KEY}.safetensors.bak"):
        (tmp_path / "encodings" / name).write_text("foreign")

    assert list(tier.keys()) == [KEY]
    assert tier.nbytes() == file_bytes(ONE)


def test_files_of_another_version_are_set_aside_once(tmp_path: Path) -> None:
    """A folder that an earlier version of the library filled loses its files to the quarantine when it is opened."""
    old = "0" * 64
    tier_with_one(tmp_path)
    file_of(tmp_path, old).write_bytes(file_of(tmp_path).read_bytes().replace(b'"version":"3"', b'"version":"2"'))
    (tmp_path / "version").unlink()

    assert list(DiskTier(tmp_path).keys()) == [KEY]
    (entry,) = (json.loads(line) for line in (tmp_path / "quarantine" / "log.jsonl").read_text().splitlines())
    assert (entry["file"], entry["reason"]) == (f"{old}.safetensors", "outdated: format version 2, now 3")
    assert (tmp_path / "version").read_text() == "3\n"


def test_what_is_there_stays(tmp_path: Path) -> None:
    """Writing a key again changes nothing: the first file stays."""
    tier = tier_with_one(tmp_path)
    inode = file_of(tmp_path).stat().st_ino

    assert tier.write(small("one", seed=1))

    assert file_of(tmp_path).stat().st_ino == inode


@pytest.mark.parametrize("mmap", [True, False])
def test_holders_keep_what_is_deleted(tmp_path: Path, mmap: bool) -> None:
    """Tensors outlive the file's name, and the tier."""
    tier = tier_with_one(tmp_path, mmap=mmap)
    held = tier.read(KEY)

    assert tier.delete(KEY)
    assert not tier.delete(KEY)

    assert tier.read(KEY) is None
    del tier
    assert held is not None
    assert content(held) == content(ONE)


def test_no_writing_into_tensors_reaches_the_file(tmp_path: Path) -> None:
    """Mapped memory is writable for torch's sake, and private: whatever is written there, the file stays."""
    tier = tier_with_one(tmp_path)
    held = tier.read(KEY)
    assert held is not None

    held.tensors["keys"].zero_()

    assert file_of(tmp_path).read_bytes() == whole_file(ONE)
    again = tier.read(KEY)
    assert again is not None
    assert content(again) == content(ONE)


def test_a_header_is_read_without_the_payload(tmp_path: Path) -> None:
    """What a file says of itself can be had although its payload is damaged, and nothing is set aside for asking."""
    tier = tier_with_one(tmp_path)
    flip(file_of(tmp_path), -1)

    header = tier.header(KEY)

    assert header is not None
    assert header.recipe == ONE.recipe
    assert files_of(tmp_path) == [f"{KEY}.safetensors"]


@pytest.mark.parametrize("key", ["", "../../etc/passwd", "A" * 64, KEY + "0", KEY[:-1] + "/"])
def test_only_keys_are_names(tmp_path: Path, key: str) -> None:
    """No text leads out of the folder."""
    tier = DiskTier(tmp_path)

    for ask in (tier.read, tier.delete, tier.pin, tier.unpin, tier.header):
        with pytest.raises(StoreError, match="is not a key"):
            ask(key)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    """A tier where a file stands is refused at once."""
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError, match="is not a folder"):
        DiskTier(tmp_path / "file")


def flip(path: Path, position: int) -> None:
    """Flip a bit, and leave the file's times and length as they are."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace(path: Path, put: Callable[[Path], object]) -> None:
    """Put something else where a file was."""
    path.unlink()
    put(path)


def make_sparse(path: Path) -> None:
    """Make a file of a terabyte that takes no room, and whose header claims a lot."""
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
def test_damage_is_set_aside_once(tmp_path: Path, damage: str, mmap: bool) -> None:
    """What is not what its name promises is never served: it is told and logged once, set aside, and can be made anew."""
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
def test_verify_all_finds_every_damage_and_moves_nothing(tmp_path: Path, damage: str) -> None:
    """Of each file it is said whether it may be served; looking changes nothing."""
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
    """All files of one model hold KV of one dtype and shape: those that differ from most are bad; of two, both are."""
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


def test_kv_of_another_shape_is_set_aside(tmp_path: Path) -> None:
    """A reader that says which shape it can use gets no other; without one it gets what is there."""
    tier = tier_with_one(tmp_path)
    assert tier.read(KEY) is not None
    assert tier.read(KEY, shape()) is not None

    with pytest.raises(CorruptEncoding, match=r"holds KV of float32 \[2, 1, 8\].*this model's is float16 \[2, 1, 8\]"):
        tier.read(KEY, shape(torch.float16))

    assert tier.read(KEY) is None
    assert quarantined(tmp_path)[0].startswith(f"{KEY}.safetensors.")


def test_what_is_ignored_is_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad file that cannot be set aside is not among the keys: nobody will be given it."""
    tier = tier_with_one(tmp_path)
    flip(file_of(tmp_path), -1)
    monkeypatch.setattr(tier._folder, "set_aside", read_only)
    with pytest.raises(CorruptEncoding):
        tier.read(KEY)

    assert list(tier.keys()) == []
    assert tier.write(ONE)
    assert list(tier.keys()) == [KEY]


def read_only(*_: object) -> bool:
    """As a file system that one may only read."""
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_verify_all_leaves_foreign_files_alone(tmp_path: Path) -> None:
    """What has no name of ours is foreign whatever it is, and is not opened; what has our suffix must be an encoding."""
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


def test_nothing_is_set_aside_but_what_was_found_bad(tmp_path: Path) -> None:
    """A good file that another process put in place of a bad one meanwhile stays, and is read."""
    tier, other = tier_with_one(tmp_path), DiskTier(tmp_path)
    flip(file_of(tmp_path), -1)
    set_aside = tier._folder.set_aside

    def too_late(*found: object) -> bool:
        other.delete(KEY)
        other.write(ONE)
        return set_aside(*found)  # type: ignore[arg-type]

    tier._folder.set_aside = too_late  # type: ignore[method-assign]
    found = tier.read(KEY)

    assert found is not None
    assert content(found) == content(ONE)
    assert quarantined(tmp_path) == []


def test_a_file_may_vanish_at_any_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evicted by another process between being found and being opened: then it is not there."""
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
def test_how_often_a_payload_is_read_can_be_chosen(tmp_path: Path, verify: Verify, raises: bool) -> None:
    """After its first use in a process only `always` looks at a payload again."""
    tier = tier_with_one(tmp_path, verify=verify)
    tier.read(KEY)
    flip(file_of(tmp_path), -1)

    if raises:
        with pytest.raises(CorruptEncoding, match="payload does not match"):
            tier.read(KEY)
    else:
        assert tier.read(KEY) is not None


def test_a_file_that_is_another_one_is_verified_again(tmp_path: Path) -> None:
    """What was verified is this state of this file, not its name."""
    tier = tier_with_one(tmp_path)
    tier.read(KEY)
    data = bytearray(file_of(tmp_path).read_bytes())
    data[-1] ^= 1
    replace(file_of(tmp_path), lambda path: path.write_bytes(data))

    with pytest.raises(CorruptEncoding, match="payload does not match"):
        tier.read(KEY)


def fail_with(number: int, *, after: int = 0) -> Callable[..., object]:
    """A system call that refuses, from some call on."""
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
def test_writing_fails_without_a_trace(tmp_path: Path, refusal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full or broken disk is told with the folder and the reason; no part of a file is left; later all is well."""
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


def write_beyond_the_limit(folder: str) -> str:
    """In a process that may write no large file."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    try:
        DiskTier(folder).write(small("large", 1000))
    except TierUnavailable as error:
        return str(error)
    return "written"


def test_the_system_refuses_large_files(tmp_path: Path) -> None:
    """The same with a refusal of the system's own."""
    assert in_child(write_beyond_the_limit, str(tmp_path)) == f"{tmp_path}: cannot write: File too large"
    assert list((tmp_path / "incoming").iterdir()) == []


def as_nobody() -> None:
    """Give up the rights of root, for which there are no closed doors."""
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)


def use_read_only(folder: str) -> dict[str, object]:
    """What a tier does in a folder that it may only read."""
    as_nobody()
    tier = DiskTier(folder, budget_bytes=1)
    two = small("two").recipe.key
    found = tier.read(KEY)
    said: dict[str, object] = {"read": found is not None and content(found) == content(ONE)}
    for name, deed in (
        ("write", lambda: tier.write(small("three"))),
        ("delete", lambda: tier.delete(KEY)),
        ("pin", lambda: tier.pin(KEY)),
        ("gc", tier.gc),
        ("bad", lambda: tier.read(two)),
        ("bad again", lambda: tier.read(two)),
    ):
        try:
            said[name] = deed()
        except StoreError as error:
            said[name] = type(error).__name__
    with tier.claim(KEY, 0.1) as held:
        said["claim"] = held
    return said


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """A folder that everyone can reach."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder.is_relative_to(tmp_path.parents[2]):
            folder.chmod(0o755)
    return tmp_path / "tier"


def test_a_read_only_folder_is_read(open_path: Path) -> None:
    """Reading works; every other deed fails with a typed error; a bad file is told once and then ignored."""
    tier = tier_with_one(open_path)
    tier.write(small("two"))
    flip(file_of(open_path, small("two").recipe.key), -1)
    for path in (open_path, *open_path.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)

    said = in_child(use_read_only, str(open_path))

    for path in (open_path, *open_path.rglob("*")):
        path.chmod(0o755)
    refused = dict.fromkeys(("write", "delete", "pin", "gc"), "TierUnavailable")
    assert said == {"read": True, **refused, "bad": "CorruptEncoding", "bad again": None, "claim": False}


def read_closed(folder: str) -> list[object]:
    """What a tier says of a file that it may not read."""
    as_nobody()
    tier = DiskTier(folder)
    try:
        tier.read(KEY)
    except CorruptEncoding as error:
        return [str(error), tier.read(KEY), tier.write(ONE)]
    return []


def test_an_unreadable_file_is_set_aside(open_path: Path) -> None:
    """A file that cannot be opened is of no use to anybody here, and must not be in the way of its successor."""
    tier_with_one(open_path)
    for path in (open_path, *open_path.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    file_of(open_path).chmod(0)

    said = in_child(read_closed, str(open_path))

    assert said == [f"{file_of(open_path)}: cannot be read: Permission denied", None, True]


def test_torch_may_compute_with_what_is_read(tmp_path: Path) -> None:
    """Mapped tensors are tensors like any other: no warning, aligned, and good for arithmetic."""
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


def test_a_tier_is_called_by_its_folder(tmp_path: Path) -> None:
    """Messages name the folder."""
    assert str(DiskTier(tmp_path)) == str(tmp_path)


def test_what_others_remove_takes_no_room(tmp_path: Path) -> None:
    """A file that another tier removed, however often it was used, makes no other go."""
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


def test_damaged_files_are_evicted_like_others(tmp_path: Path) -> None:
    """A file that cannot be read costs nothing to lose, and a budget of nothing leaves nothing."""
    tier_with_one(tmp_path)
    file_of(tmp_path).write_bytes(b"damaged")

    assert list(DiskTier(tmp_path, budget_bytes=0).keys()) == []
