"""Whatever is in the folder of a store, it serves the right KV or none, in time, and nothing outside changes."""

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, suppress
from pathlib import Path

import pytest

from promptcache.diagnostics import StoreError
from promptcache.kv import FileTier, Store
from tests.kv.stored import bits, file_bytes, shape, small

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

KEPT = [small(name, 20, seed=seed) for seed, name in enumerate("abcd")]
BUDGETS = (None, sum(map(file_bytes, KEPT)) // 2)
"""Budgets of the tiers that are opened one after another. The second one holds half of the encodings."""
LIMIT_S = 8.0  # all methods take 50 ms, and longer on a busy machine


def check(folder: Path) -> None:
    for budget in BUDGETS:
        started = time.monotonic()
        use_all(folder, budget)
        assert time.monotonic() - started < LIMIT_S


def use_all(folder: Path, budget_bytes: int | None) -> None:
    tier, keys = FileTier(folder, budget_bytes=budget_bytes), [each.recipe.key for each in KEPT]
    store = Store(shape(), [tier])
    with store.claim([keys], 0.1):
        for each in KEPT:
            found = store.get(each.recipe.key).kv
            assert found is None or bits(found.keys) == bits(each.tensors["keys"])
            put = store.put(each.recipe, each.tensors["keys"], each.tensors["values"])
            assert bits(put.values) == bits(each.tensors["values"])
    assert store.lacking(keys).keys() <= {str(folder)}
    calls: list[Callable[[], object]] = [store.probe, store.nbytes, tier.files, lambda: tier.read_unverified(keys[0])]
    calls += [lambda: list(tier.verify_all()), lambda: store.delete(keys[0]), tier.gc]
    for call in calls:
        with suppress(StoreError):
            call()


def make_socket(path: Path) -> None:
    """Make a socket. The paths of sockets are short, so it is made under another name."""
    with chdir(path.parent), socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
        Path("socket").rename(path.name)


def make_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


OBJECTS: dict[str, Callable[[Path, Path], object]] = {
    "nothing": lambda path, outside: None,
    "pipe": lambda path, outside: os.mkfifo(path),
    "socket": lambda path, outside: make_socket(path),
    "folder": lambda path, outside: (path / "inside").mkdir(parents=True),
    "garbage": lambda path, outside: path.write_bytes(b"\x00\xff{" * 1000),
    "huge file": lambda path, outside: make_sparse(path),
    "link to a device": lambda path, outside: path.symlink_to("/dev/zero"),
    "link to a folder": lambda path, outside: path.symlink_to(outside),
    "link to a file": lambda path, outside: path.symlink_to(outside / path.name),
    "link to nothing": lambda path, outside: path.symlink_to(outside / "absent"),
    "loop of links": lambda path, outside: path.symlink_to(path.name),
}
"""Objects at a path. The folder outside has a file with the name of each file of the store."""


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all that a store ever writes. One encoding is damaged."""
    folder = tmp_path_factory.mktemp("store") / "tier"
    store = Store(shape(), [FileTier(folder)])
    with store.claim([[each.recipe.key] for each in KEPT], 1):
        for each in KEPT:
            store.put(each.recipe, each.tensors["keys"], each.tensors["values"])
    damaged = min((folder / "encodings").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-1])
    (folder / "incoming" / "killed.7.1.tmp").touch()
    return folder


def paths(folder: Path) -> list[str]:
    """Return the paths in the folder of a tier, of each kind of file two: among the encodings, one is damaged."""
    listed = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    kinds: dict[tuple[Path, str], list[str]] = {}
    for name in listed:
        kinds.setdefault((Path(name).parent, Path(name).suffix), []).append(name)
    return [name for (parent, _), names in kinds.items() for name in (names if parent == Path() else names[:2])]


@contextmanager
def copied(used: Path, name: str) -> Iterator[tuple[Path, Path, Path]]:
    """Yield a copy of a folder, a path in it, and a folder outside. Check that nothing outside has changed."""

    def states() -> dict[Path, tuple[bytes, int, int]]:
        found = {path: path.lstat() for path in (outside, *outside.rglob("*"))}
        return {
            path: (path.read_bytes() if path.is_file() else b"", status.st_mode, status.st_mtime_ns)
            for path, status in found.items()
        }

    with tempfile.TemporaryDirectory() as made:  # folders of pytest belong to one user
        Path(made).chmod(0o755)
        folder, outside = Path(made) / "tier", Path(made) / "outside"
        shutil.copytree(used, folder)
        outside.mkdir()
        for path in used.rglob("*"):
            if path.is_file():
                shutil.copy(path, outside)
        before = states()
        yield folder, folder / name, outside
        assert states() == before, name


@pytest.mark.parametrize("thing", OBJECTS)
def test_no_object_in_a_folder_costs_kv(thing: str, used: Path) -> None:
    """Each path in turn is another object. Stores serve the right KV or none, in time, and nothing outside changes."""
    for name in paths(used):
        with copied(used, name) as (folder, path, outside):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            OBJECTS[thing](path, outside)
            check(folder)


@contextmanager
def without_rights() -> Iterator[None]:
    """Give up the rights of root for a while, because root ignores permissions."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.mark.parametrize("mode", [0o000, 0o111, 0o444])
def test_no_permission_of_a_folder_costs_kv(mode: int, used: Path) -> None:
    """Each path in turn, and the whole folder, cannot be used, or not be listed, or not be searched."""
    for name in (".", *paths(used)):
        with copied(used, name) as (folder, path, _):
            if os.geteuid() == 0:
                for each in (folder, *folder.rglob("*")):
                    os.chown(each, 65534, 65534)
            path.chmod(mode)
            try:
                with without_rights():
                    check(folder)
            finally:
                with suppress(FileNotFoundError):  # the store has removed it
                    path.chmod(0o755)
