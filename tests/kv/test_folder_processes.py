"""The budget of a folder holds after every step, and processes that share it are killed at any moment."""

import errno
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from filelock import FileLock

from promptcache.diagnostics import CorruptEncoding, TierUnavailable
from promptcache.kv import FileTier
from promptcache.kv.files import tier as tier_module
from tests.kv.processes import context, finish, kill_at_random, start
from tests.kv.stored import content, file_bytes, random_stored, read, recipe, shape, small, store_over, write

ALL = [random_stored(recipe(f"large {number}", 200 + 100 * number), shape(), seed=number) for number in range(8)]
BUDGET = sum(map(file_bytes, ALL)) // 2
BY_KEY = {each.recipe.key: each for each in ALL}


def incoming(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "incoming").iterdir())


def write_and_evict(folder: str, seed: int) -> None:
    tier = FileTier(folder, budget_bytes=BUDGET)
    chance = random.Random(seed)
    (Path(folder) / "started").touch()
    while True:
        each = chance.choice(ALL)
        key = each.recipe.key
        what = chance.random()
        if what < 0.1:
            tier.delete(key)
        elif what < 0.2:
            path = Path(folder) / "encodings" / f"{key}.safetensors"
            if path.exists():
                path.unlink()
                path.write_bytes(b"spoiled" * 1000)
        else:
            write(tier, each)
            try:
                read(tier, key)
            except CorruptEncoding:
                tier.delete(key)
                write(tier, each)


def check_what_is_left(folder: Path) -> None:
    parts = [path for part in ("encodings", "incoming") for path in (folder / part).iterdir()]
    assert sum(path.lstat().st_size for path in parts) <= BUDGET

    tier = FileTier(folder, budget_bytes=BUDGET)
    for key in list(tier.keys()):
        try:
            found = read(tier, key)
            assert found is not None
            assert content(found) == content(BY_KEY[key])
        except CorruptEncoding:  # a damaged file
            tier.delete(key)
    assert all(verdict.fault is None for verdict in tier.verify_all())
    tier.gc()
    assert incoming(folder) == []
    assert write(tier, ALL[0])


@pytest.mark.process
@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(1000, 1200), marks=pytest.mark.slow)], ids=len)
def test_killed_processes_leave_a_correct_folder(tmp_path: Path, seeds: range) -> None:
    """After a kill at any moment, every file that is served is right, and `gc` removes unfinished files."""
    for seed in seeds:
        kill_at_random(tmp_path, seed, 0.05, write_and_evict, str(tmp_path), seed)
        check_what_is_left(tmp_path)


def die_while_writing(folder: str) -> None:
    """Kill this process after the last byte was written and before the rename."""
    tier = FileTier(folder)
    os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    write(tier, ALL[0])


@pytest.mark.process
@pytest.mark.parametrize("by_write", [False, True], ids=["gc", "write"])
def test_only_files_of_killed_processes_are_removed(tmp_path: Path, by_write: bool) -> None:
    tier = FileTier(tmp_path, budget_bytes=file_bytes(ALL[0]) + file_bytes(ALL[1]))
    write(tier, ALL[1])
    (tmp_path / "notes.txt").touch()
    (tmp_path / "encodings" / "notes.txt").touch()
    process = start(die_while_writing, str(tmp_path))
    process.join()
    (left,) = incoming(tmp_path)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}

    assert process.exitcode == -signal.SIGKILL
    if by_write:
        assert write(tier, ALL[0])
        tier.delete(ALL[0].recipe.key)
    else:
        assert tier.gc() == (left,)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before - {tmp_path / "incoming" / left}


def test_a_file_that_is_being_written_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer holds the lock of the folder until its file is complete, so no other process takes it for abandoned."""
    monkeypatch.setattr(tier_module, "LOCK_TIMEOUT_S", 0.1)
    other, synced = FileTier(tmp_path), os.fsync

    def sync(descriptor: int) -> None:
        with pytest.raises(TierUnavailable, match="another process held its lock"):
            other.gc()
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", sync)

    assert write(FileTier(tmp_path), ALL[0])


def hold_claim(folder: str, key: str, answers: object) -> None:
    with store_over(folder).claim([[key]], 10) as claimed:
        answers.put(claimed)  # type: ignore[attr-defined]
        time.sleep(60)


@pytest.mark.process
def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    """A claim excludes other processes until its holder releases it or is killed. A wait for it ends."""
    store = store_over(tmp_path)
    key, other = ALL[0].recipe.key, ALL[1].recipe.key
    answers = context().SimpleQueue()
    process = start(hold_claim, str(tmp_path), key, answers)
    assert answers.get() == {key}

    started = time.monotonic()
    with store.claim([[key]], 0.2) as claimed:
        assert not claimed
    assert time.monotonic() - started >= 0.2
    for chains, free in (([[key], [other]], {other}), ([[other, key]], {other}), ([[key, other]], set())):
        with store.claim(chains, 0) as claimed:
            assert claimed == free

    process.kill()
    process.join()
    with store.claim([[key]], 10) as claimed:
        assert claimed == {key}
        with store.claim([[key]], 0) as twice:
            assert not twice
    with store.claim([[key]], 0) as claimed:
        assert claimed == {key}


def test_a_waiting_claim_can_be_ended(tmp_path: Path) -> None:
    key = ALL[0].recipe.key

    def cancel() -> None:
        raise KeyboardInterrupt

    with (
        store_over(tmp_path).claim([[key]], 0),
        pytest.raises(KeyboardInterrupt),
        store_over(tmp_path).claim([[key]], 60, cancel),
    ):
        pass


def test_without_working_locks_every_key_is_claimed(tmp_path: Path) -> None:
    """On a file system without locks, nothing waits, each process encodes for itself, and there is a fault."""
    key, store = ALL[0].recipe.key, store_over(tmp_path)
    shutil.rmtree(tmp_path / "locks")
    (tmp_path / "locks").write_text("in the way")

    with store.claim([[key]], 60) as claimed:
        assert claimed == {key}
    assert "cannot lock: " in store.faults()[0]


def test_gc_removes_locks_that_are_not_held(tmp_path: Path) -> None:
    store, (one, two) = store_over(tmp_path), (each.recipe.key for each in ALL[:2])
    with store.claim([[one], [two]], 1):
        pass

    with store.claim([[two]], 1):
        FileTier(tmp_path).gc()
        assert [path.name for path in (tmp_path / "locks").iterdir()] == [f"{two}.lock"]
        with store_over(tmp_path).claim([[two]], 0) as claimed:
            assert not claimed


NAMES = "abcdefgh"
SMALL = {name: small(name, 3 + 5 * index) for index, name in enumerate(NAMES)}
KEYS = {name: stored.recipe.key for name, stored in SMALL.items()}
SIZES = {name: file_bytes(stored) for name, stored in SMALL.items()}
THIRD = sum(SIZES.values()) // 3


def used_bytes(folder: Path) -> int:
    """Return the bytes of all files in the budget. A file that is moved meanwhile is counted once."""
    files = {}
    for part in ("incoming", "encodings"):
        for entry in os.scandir(folder / part):
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            files[status.st_ino] = status.st_size
    return sum(files.values())


@contextmanager
def watched(folder: Path, budget_bytes: int) -> Iterator[list[int]]:
    """Check the budget after every system call of this thread."""
    seen: list[int] = []

    def look(_: FrameType, event: str, function: object) -> None:
        if event == "c_return" and getattr(function, "__module__", None) == "posix":
            seen.append(used_bytes(folder))

    sys.setprofile(look)
    try:
        yield seen
    finally:
        sys.setprofile(None)
    assert seen
    assert max(seen) <= budget_bytes


def test_the_budget_holds_after_every_system_call(tmp_path: Path) -> None:
    tier = FileTier(tmp_path, budget_bytes=THIRD)
    chance = random.Random(0)

    with watched(tmp_path, THIRD) as seen:
        for _ in range(40):
            assert write(tier, SMALL[chance.choice(NAMES)])

    assert max(seen) > THIRD / 2


def test_an_encoding_as_large_as_the_budget_fits(tmp_path: Path) -> None:
    """An encoding of exactly the budget's size fits, and one that is a byte larger does not, which evicts nothing."""
    for budget_bytes, left in ((SIZES["h"], "h"), (SIZES["h"] - 1, "a")):
        tier = FileTier(tmp_path / str(budget_bytes), budget_bytes=budget_bytes)

        assert write(tier, SMALL["a"])
        assert write(tier, SMALL["h"]) is (left == "h")
        assert list(tier.keys()) == [KEYS[left]]


def test_an_eviction_that_fails_in_the_middle_is_only_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a file cannot be removed, the ones before it are evicted, and the next write counts right."""
    tier = FileTier(tmp_path, budget_bytes=sum(SIZES[name] for name in "abh"))
    for time_s, name in enumerate("abc"):
        write(tier, SMALL[name])
        os.utime(tmp_path / "encodings" / f"{KEYS[name]}.safetensors", (time_s, time_s))
    removed, unlink = [], os.remove

    def refuse_the_second(path: str) -> None:
        removed.append(path)
        if len(removed) == 2:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        unlink(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "remove", refuse_the_second)
        with pytest.raises(TierUnavailable, match="cannot write: Operation not permitted"):
            write(tier, SMALL["h"])

    assert write(tier, SMALL["h"])
    assert used_bytes(tmp_path) <= sum(SIZES[name] for name in "abh")


def test_the_file_that_was_used_longest_ago_is_evicted(tmp_path: Path) -> None:
    """All processes evict by the modification times of the files, which each use sets."""
    same = [small(str(number), 9) for number in range(9)]
    tier = FileTier(tmp_path)
    for each in same[:6]:
        write(tier, each)
        time.sleep(0.01)
    for number in (3, 0, 5, 1):
        read(tier, same[number].recipe.key)
        time.sleep(0.01)

    for each in same[6:]:
        write(FileTier(tmp_path, budget_bytes=6 * file_bytes(same[0])), each)

    assert set(tier.keys()) == {same[number].recipe.key for number in (0, 5, 1, 6, 7, 8)}


def test_opening_with_a_smaller_budget_evicts(tmp_path: Path) -> None:
    tier = FileTier(tmp_path)
    for stored in SMALL.values():
        write(tier, stored)

    FileTier(tmp_path, budget_bytes=THIRD)

    assert 0 < used_bytes(tmp_path) <= THIRD


def churn(folder: str, seed: int) -> None:
    tier = FileTier(folder, budget_bytes=THIRD)
    chance = random.Random(seed)
    for _ in range(30):
        name = chance.choice(NAMES)
        found = read(tier, KEYS[name])
        if found is None:
            write(tier, SMALL[name])
        else:
            assert content(found) == content(SMALL[name])


@pytest.mark.process
def test_processes_share_one_budget(tmp_path: Path) -> None:
    tier = FileTier(tmp_path, budget_bytes=THIRD)
    children = [start(churn, str(tmp_path), seed) for seed in range(3)]

    seen = []
    while any(child.is_alive() for child in children):
        with FileLock(tmp_path / "lock"):  # nothing is added or evicted while we count
            seen.append(used_bytes(tmp_path))
        time.sleep(0.01)
    for child in children:
        finish(child)

    assert THIRD / 2 < max(seen) <= THIRD
    assert all(verdict.fault is None for verdict in tier.verify_all())
