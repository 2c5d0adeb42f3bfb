"""Whatever is in the folder of a store, the answers are those of a fresh engine, in time, and nothing outside changes."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager, suppress
from pathlib import Path

import pytest

from promptcache import Engine, MemoryStore
from promptcache.diagnostics import StoreError
from promptcache.kv import BlobTier, DiskTier, RemoteTier, TieredStore
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

MODEL, TOKENIZER = tiny_model(), ByteTokenizer()
SCHEMA = (
    '<schema name="travel"><module name="plan">Stay three days.</module><module name="city">Miami.</module></schema>'
)
PROMPT = '<prompt schema="travel"><plan/><city/>Where to?</prompt>'
LIMIT_S = 8.0  # an answer takes 50 ms, and longer on a busy machine

TIERS: dict[str, Sequence[Callable[[Path], BlobTier]]] = {
    "folder": (DiskTier, lambda folder: DiskTier(folder, budget_bytes=20_000, mmap=False)),
    "file": (lambda folder: RemoteTier(f"file://{folder}", lease_s=0.2),),
}
"""Tiers of each kind of folder, opened one after another. The budget holds about half of the encodings."""


def answer(tier: BlobTier | None) -> str:
    """Return the answer of an engine that was made now."""
    store = TieredStore(MemoryStore(MODEL.shape), [] if tier is None else [tier])
    engine = Engine(MODEL, TOKENIZER, store=store)
    engine.add_schema(SCHEMA)
    return engine.generate(PROMPT, max_new_tokens=4).text


def use_all(tier: BlobTier, key: str) -> None:
    """Call the other methods of a tier; each returns or raises a typed error."""
    calls: list[Callable[[], object]] = [tier.probe, tier.nbytes, lambda: list(tier.keys())]
    calls += [lambda: tier.delete(key)]
    if isinstance(tier, DiskTier):
        calls += [tier.files, lambda: tier.header(key), lambda: list(tier.verify_all())]
        calls += [tier.quarantined, tier.empty_quarantine, tier.gc, tier.trim]
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
    return answer(None)


@pytest.fixture(scope="module", params=TIERS)
def kind(request: pytest.FixtureRequest) -> str:
    """Return a kind of folder."""
    return str(request.param)


@pytest.fixture(scope="module")
def used(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all that a store ever writes. One encoding is damaged and claimed."""
    folder = tmp_path_factory.mktemp("store") / "tier"
    answer(TIERS[kind][0](folder))
    key = damaged(folder)
    (file,) = folder.rglob(f"{key}.safetensors")
    good = file.read_bytes()
    file.write_bytes(good[:-1])
    answer(TIERS[kind][0](folder))  # moves it to quarantine
    file.write_bytes(good[:-1])
    (folder / "claims").mkdir(exist_ok=True)
    (folder / "claims" / key).touch()
    (folder / "incoming" / "killed.7.1.tmp").touch()
    return folder


def damaged(folder: Path) -> str:
    """Return the key of the damaged encoding."""
    return min(path.stem for path in folder.rglob("*.safetensors") if "signatures" not in path.parts)


def paths(folder: Path) -> list[str]:
    """Return all paths in the folder of a tier."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


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


@pytest.mark.parametrize("thing", OBJECTS)
def test_no_object_in_a_folder_costs_an_answer(thing: str, kind: str, used: Path, fresh: str) -> None:
    """Each path in turn is another object. The answers are right and come in time, and nothing outside changes."""
    key = damaged(used)
    for name in paths(used):
        with copied(used, name) as (folder, path, outside):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            OBJECTS[thing](path, outside)
            for opened in TIERS[kind]:
                started = time.monotonic()
                assert answer(opened(folder)) == fresh, name
                use_all(opened(folder), key)
                assert time.monotonic() - started < LIMIT_S, name


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
def test_no_permission_of_a_folder_costs_an_answer(mode: int, kind: str, used: Path, fresh: str) -> None:
    """Each path in turn cannot be used, or not be listed, or not be searched, and the answers are right."""
    key = damaged(used)
    for name in (".", *paths(used)):
        with copied(used, name) as (folder, path, _):
            if os.geteuid() == 0:
                for each in (folder, *folder.rglob("*")):
                    os.chown(each, 65534, 65534)
            path.chmod(mode)
            try:
                with without_rights():
                    for opened in TIERS[kind]:
                        assert answer(opened(folder)) == fresh, name
                        use_all(opened(folder), key)
            finally:
                with suppress(FileNotFoundError):  # the store has moved or removed it
                    path.chmod(0o755)
