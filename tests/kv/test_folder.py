"""A tier of files in a folder: hostile files, permissions, locks, and what fails in the system."""

import errno
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from filelock import FileLock

from promptcache.diagnostics import StoreError, TierUnavailable
from promptcache.kv import FileTier, Store, StoreConfig, expand_home, open_store
from promptcache.kv.files import tier as tier_module
from promptcache.kv.files.format import pack
from tests.kv.processes import in_child
from tests.kv.stored import content, files_of, read, shape, small, store_over, write

ONE = small("one")
KEY = ONE.recipe.key


def file_of(folder: Path, key: str = KEY) -> Path:
    return folder / "encodings" / f"{key}.safetensors"


def tier_with_one(folder: Path) -> FileTier:
    tier = FileTier(folder)
    assert write(tier, ONE)
    return tier


def put_instead(path: Path, put: Callable[[Path], object]) -> None:
    path.unlink()
    put(path)


def make_sparse(path: Path) -> None:
    """Make a sparse file of a terabyte whose header claims a huge size."""
    path.write_bytes((2**40 - 8).to_bytes(8, "little") + pack(ONE)[8:])
    os.truncate(path, 2**40)


def make_huge(path: Path) -> None:
    """Make a sparse file of a terabyte with valid metadata and a valid header."""
    metadata = json.loads(pack(ONE)[8 : 8 + int.from_bytes(pack(ONE)[:8], "little")])["__metadata__"]
    sizes = {"dtype": "F32", "shape": [2, 1, 3, 2**36]}
    offsets = {"keys": [0, 3 * 2**39], "values": [3 * 2**39, 3 * 2**40]}
    tree = {"__metadata__": {**metadata, "head_dim": str(2**36)}}
    tree |= {name: {**sizes, "data_offsets": range_} for name, range_ in offsets.items()}
    text = json.dumps(tree).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + 3 * 2**40)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "truncated in its header": lambda path: os.truncate(path, 100),
    "enormous": make_sparse,
    "enormous with a valid header": make_huge,
    "a link out of the folder": lambda path: put_instead(path, lambda it: it.symlink_to("/etc/passwd")),
    "a link to itself": lambda path: put_instead(path, lambda it: it.symlink_to(it)),
    "a link to a whole file": lambda path: (path.rename(path.parent.parent / "w"), path.symlink_to("../w")),
    "a pipe": lambda path: put_instead(path, os.mkfifo),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_deleted(tmp_path: Path, name: str) -> None:
    """A hostile file is found without reading or following it, and is replaced."""
    tier, store = tier_with_one(tmp_path), store_over(tmp_path)
    HOSTILE[name](file_of(tmp_path))
    assert [each.fault is None for each in tier.verify_all()] == [False]

    assert len(store.get(KEY).faults) == 1
    assert files_of(tmp_path) == []
    store.put(ONE.recipe, ONE.tensors["keys"], ONE.tensors["values"])
    assert read(tier, KEY) is not None


def test_a_write_replaces_a_link(tmp_path: Path) -> None:
    """A write to a name that is a link replaces the link, not the file behind it."""
    tier = tier_with_one(tmp_path)
    (tmp_path / "outside").write_text("kept")
    put_instead(file_of(tmp_path), lambda path: path.symlink_to(tmp_path / "outside"))

    assert write(tier, ONE)
    assert (tmp_path / "outside").read_text() == "kept"
    assert not file_of(tmp_path).is_symlink()


def test_kv_of_another_shape_is_deleted(tmp_path: Path) -> None:
    tier_with_one(tmp_path)
    assert store_over(tmp_path).get(KEY).kv is not None

    (fault,) = Store(shape(torch.float16), (FileTier(tmp_path),)).get(KEY).faults

    assert re.search(r"holds KV of float32 \[2, 1, 8\].*this model's is float16 \[2, 1, 8\]", fault)
    assert files_of(tmp_path) == []


def test_a_file_that_is_replaced_while_it_is_opened_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that takes the place of a checked file is not opened: the file that was checked is mapped."""
    tier = tier_with_one(tmp_path)
    file = tier.read(KEY)
    put_instead(file_of(tmp_path), lambda path: path.symlink_to("/dev/zero"))
    monkeypatch.setattr(FileTier, "read", lambda *_: file)

    found = read(tier, KEY)

    assert found is not None
    assert content(found) == content(ONE)


def test_a_relative_folder_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    tier = FileTier("kept")
    write(tier, ONE)
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert read(tier, KEY) is not None
    assert write(tier, small("another"))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert str(tier) == "kept"


def test_a_tilde_at_the_beginning_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `~` at the start is the home folder; elsewhere it is an ordinary character."""
    monkeypatch.setenv("HOME", str(tmp_path))

    assert [expand_home(path) for path in ("~/x", Path("~/x"), "x/~", "/~x")] == [
        tmp_path / "x", tmp_path / "x", Path("x/~"), Path("/~x")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("{folder}/file", "is not a folder"),
        ("~unknown-user/x", "'~unknown-user/x': there is no such user here"),
        ("~/x", "HOME is not set"),
    ],
)
def test_a_wrong_folder_is_refused(
    location: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a file, and a path in the home of an unknown user, raise `StoreError`, however they are opened."""
    (tmp_path / "file").touch()
    if location == "~/x":  # as in some containers
        monkeypatch.setattr("os.path.expanduser", lambda path: path)
    folder = location.format(folder=tmp_path)

    for opened in (lambda: FileTier(folder), lambda: open_store(StoreConfig(folder=folder), shape())):
        with pytest.raises(StoreError, match=message):
            opened()


def test_a_held_lock_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that another program never releases delays one write; the next ones fail at once, until it is free."""
    monkeypatch.setattr(tier_module, "LOCK_TIMEOUT_S", 0.5)
    tier = FileTier(tmp_path)
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


def system_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize("error", [system_error(errno.ENOSPC), system_error(errno.EIO), KeyboardInterrupt()], ids=repr)
def test_a_failed_sync_leaves_no_file(tmp_path: Path, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = tier_with_one(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", Mock(side_effect=error))
        with pytest.raises((TierUnavailable, KeyboardInterrupt)) as caught:
            write(tier, small("two"))

    is_fault = isinstance(error, OSError)
    assert str(caught.value) == (f"{tmp_path}: cannot write: {error.strerror}" if is_fault else "")
    assert list((tmp_path / "incoming").iterdir()) == []
    assert files_of(tmp_path) == [f"{KEY}.safetensors"]
    assert write(tier, small("two"))


@pytest.mark.parametrize(("number", "is_damage"), [(errno.EIO, True), (errno.EMFILE, False)])
def test_only_errors_of_one_file_are_damage(
    tmp_path: Path, number: int, is_damage: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error of one file, the file is deleted. Other system errors are faults of the tier, and it stays."""
    tier_with_one(tmp_path)
    store = store_over(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", Mock(side_effect=system_error(number)))
        (fault,) = store.get(KEY).faults

    assert os.strerror(number) in fault
    assert (files_of(tmp_path) == []) == is_damage


def drop_rights() -> None:
    """Drop the rights of root, which ignores permissions."""
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)


def use_read_only(folder: str) -> dict[str, object]:
    drop_rights()
    tier = FileTier(folder, budget_bytes=1)
    found = read(tier, KEY)
    results: dict[str, object] = {"read": found is not None and content(found) == content(ONE)}
    for name, operation in (
        ("write", lambda: write(tier, small("three"))),
        ("delete", lambda: tier.delete(KEY)),
        ("gc", tier.gc),
        ("lock", lambda: tier.try_lock(KEY, 0.1)),
        ("bad", lambda: read(tier, small("two").recipe.key)),
    ):
        try:
            results[name] = operation()
        except StoreError as error:
            results[name] = type(error).__name__
    return results


@pytest.fixture
def open_path() -> Iterator[Path]:
    """Return a path that every user can reach. Folders of pytest belong to one user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder) / "tier"


@pytest.mark.process
def test_a_read_only_folder_is_read(open_path: Path) -> None:
    tier = tier_with_one(open_path)
    write(tier, small("two"))
    data = bytearray(file_of(open_path, small("two").recipe.key).read_bytes())
    data[-1] ^= 1
    file_of(open_path, small("two").recipe.key).write_bytes(data)
    for path in (open_path, *open_path.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)

    results = in_child(use_read_only, str(open_path))

    for path in (open_path, *open_path.rglob("*")):
        path.chmod(0o755)
    refused = dict.fromkeys(("write", "delete", "gc", "lock"), "TierUnavailable")
    assert results == {"read": True, **refused, "bad": "CorruptEncoding"}


def read_closed(folder: str) -> list[object]:
    drop_rights()
    store = store_over(Path(folder))
    faults = store.get(KEY).faults
    store.put(ONE.recipe, ONE.tensors["keys"], ONE.tensors["values"])
    return [*faults, read(FileTier(folder), KEY) is not None]


@pytest.mark.process
def test_an_unreadable_file_is_replaced(open_path: Path) -> None:
    """A file without read permission is deleted and written again. A file of another user hinders no write."""
    tier_with_one(open_path)
    (open_path / "incoming" / "other.7.1.tmp").touch()
    for path in (open_path, *open_path.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    (open_path / "incoming").chmod(0o1777)  # only the owner may remove a file
    file_of(open_path).chmod(0)

    results = in_child(read_closed, str(open_path))

    assert results == [f"disk: {file_of(open_path)}: cannot be read: Permission denied", True]
