"""Whatever is in the folder of a store, the answers are those of a fresh engine, in time, and nothing outside changes."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, suppress
from itertools import cycle
from pathlib import Path

import pytest
import torch

from promptcache import Engine
from promptcache.diagnostics import StoreError
from promptcache.kv import KV, FileTier, Recipe, Store
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

MODEL, TOKENIZER = tiny_model(), ByteTokenizer()
SCHEMA = (
    '<schema name="travel"><module name="plan">Stay three days.</module><module name="city">Miami.</module></schema>'
)
PROMPT = '<prompt schema="travel"><plan/><city/>Where to?</prompt>'
LIMIT_S = 8.0  # an answer takes 50 ms, and longer on a busy machine
BUDGETS = (None, 20_000)
"""Budgets of the tiers that are opened one after another. The second one holds about half of the encodings."""


def store_over(folder: Path | None, budget_bytes: int | None = None) -> Store:
    """Return a store over a folder, with memory of its own."""
    tiers = [] if folder is None else [FileTier(folder, budget_bytes=budget_bytes)]
    return Store(MODEL.shape, tiers)


def answer(store: Store) -> str:
    """Return the answer of an engine that was made now."""
    engine = Engine(MODEL, TOKENIZER, store=store)
    engine.add_schema(SCHEMA)
    return engine.generate(PROMPT, max_new_tokens=4).text


Kept = dict[Recipe, KV]


@pytest.fixture(scope="module")
def kept() -> Kept:
    """Return all KV of the answer."""
    memory = (store := store_over(None)).memory
    answer(store)
    found = {recipe: memory.find(recipe.key) for recipe in memory.recipes()}
    return {recipe: handle for recipe, handle in found.items() if handle is not None}


def check(folder: Path, kept: Kept) -> None:
    """Check that a store over a folder serves the right KV or none, and that all its methods return in time."""
    for budget in BUDGETS:
        started = time.monotonic()
        use_all(folder, budget, kept)
        assert time.monotonic() - started < LIMIT_S


def use_all(folder: Path, budget_bytes: int | None, kept: Kept) -> None:
    """Call the methods of a store and of its tier; those of the tier return or raise a typed error."""
    store, keys = store_over(folder, budget_bytes), [recipe.key for recipe in kept]
    with store.claim(keys, 0.1):
        for recipe, handle in kept.items():
            found = store.get(recipe.key).handle
            assert found is None or torch.equal(found.keys, handle.keys)
            assert torch.equal(store.put(recipe, handle.keys, handle.values).values, handle.values)
    assert store.lacking(keys).keys() <= {str(folder)}
    (tier,) = store.blob_tiers
    assert isinstance(tier, FileTier)
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
    """Make a file of a terabyte that takes no room on the disk."""
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
def fresh() -> str:
    """Return the answer without a folder."""
    return answer(store_over(None))


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all that a store ever writes. One encoding is damaged."""
    folder = tmp_path_factory.mktemp("store") / "tier"
    answer(store_over(folder))
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
    with tempfile.TemporaryDirectory() as made:  # folders of pytest belong to one user
        Path(made).chmod(0o755)
        folder, outside = Path(made) / "tier", Path(made) / "outside"
        shutil.copytree(used, folder)
        outside.mkdir()
        for path in used.rglob("*"):
            if path.is_file():
                shutil.copy(path, outside)
        before = states(outside)
        yield folder, folder / name, outside
        assert states(outside) == before, name


def states(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Return content, mode and modification time of all files in a folder, and of the folder."""
    found = {}
    for path in (folder, *folder.rglob("*")):
        status = path.lstat()
        found[str(path)] = path.read_bytes() if path.is_file() else b"", status.st_mode, status.st_mtime_ns
    return found


def put_object(thing: str, path: Path, outside: Path) -> None:
    """Put an object in place of what is at a path."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    OBJECTS[thing](path, outside)


@pytest.mark.parametrize("thing", OBJECTS)
def test_no_object_in_a_folder_costs_kv(thing: str, used: Path, kept: Kept) -> None:
    """Each path in turn is another object. Stores serve the right KV or none, in time, and nothing outside changes."""
    for name in paths(used):
        with copied(used, name) as (folder, path, outside):
            put_object(thing, path, outside)
            check(folder, kept)


def test_no_object_in_a_folder_costs_an_answer(used: Path, fresh: str) -> None:
    """The same with an engine: each path in turn is one of the objects, and the answers are right."""
    for name, thing in zip(paths(used), cycle(OBJECTS), strict=False):
        with copied(used, name) as (folder, path, outside):
            put_object(thing, path, outside)
            started = time.monotonic()
            assert answer(store_over(folder)) == fresh, (name, thing)
            assert time.monotonic() - started < LIMIT_S, (name, thing)


@contextmanager
def without_rights() -> Iterator[None]:
    """Give up the rights of root for a while, because root ignores permissions."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("mode", [0o000, 0o111, 0o444])
def test_no_permission_of_a_folder_costs_an_answer(mode: int, used: Path, kept: Kept, fresh: str) -> None:
    """Each path in turn cannot be used, or not be listed, or not be searched. The whole folder costs no answer."""
    for name in (".", *paths(used)):
        with copied(used, name) as (folder, path, _):
            if os.geteuid() == 0:
                for each in (folder, *folder.rglob("*")):
                    os.chown(each, 65534, 65534)
            path.chmod(mode)
            try:
                with without_rights():
                    check(folder, kept)
                    assert name != "." or answer(store_over(folder)) == fresh
            finally:
                with suppress(FileNotFoundError):  # the store has removed it
                    path.chmod(0o755)
