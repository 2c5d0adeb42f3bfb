"""Processes that share a folder are killed at any moment, and the folder stays correct."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from promptcache.diagnostics import CorruptEncoding, TierUnavailable
from promptcache.kv import FileTier, Store
from promptcache.kv.files import tier as tier_module
from tests.kv.processes import context, kill_at_random, start
from tests.kv.stored import content, file_bytes, random_stored, read, recipe, shape, write

ALL = [random_stored(recipe(f"large {number}", 200 + 100 * number), shape(), seed=number) for number in range(8)]
BUDGET = sum(map(file_bytes, ALL)) // 2
BY_KEY = {each.recipe.key: each for each in ALL}


def incoming(folder: Path) -> list[str]:
    """Return the unfinished files."""
    return sorted(path.name for path in (folder / "incoming").iterdir())


def write_and_evict(folder: str, seed: int) -> None:
    """Write, read, evict, delete and damage files in an endless loop."""
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
            spoil(Path(folder) / "encodings" / f"{key}.safetensors")
        else:
            write(tier, each)
            try:
                read(tier, key)
            except CorruptEncoding:
                tier.delete(key)
                write(tier, each)


def spoil(path: Path) -> None:
    """Replace a file by a damaged one."""
    if path.exists():
        path.unlink()
        path.write_bytes(b"spoiled" * 1000)


def check_what_is_left(folder: Path) -> None:
    """Check that the folder holds its budget, that its files are right, and that `gc` cleans it."""
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


def kill_often(folder: Path, times: range) -> None:
    """Kill processes in one folder, and check the folder after each."""
    for seed in times:
        kill_at_random(folder, seed, 0.05, write_and_evict, str(folder), seed)
        check_what_is_left(folder)


@pytest.mark.process
def test_killed_processes_leave_a_correct_folder(tmp_path: Path) -> None:
    """After a kill at any moment, every file that is served is right, and `gc` removes unfinished files."""
    kill_often(tmp_path, range(6))


@pytest.mark.process
@pytest.mark.slow
def test_two_hundred_killed_processes_leave_a_correct_folder(tmp_path: Path) -> None:
    """200 kills leave the folder correct."""
    kill_often(tmp_path, range(1000, 1200))


def die_while_writing(folder: str) -> None:
    """Kill this process after the last byte was written and before the rename."""
    tier = FileTier(folder)
    os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    write(tier, ALL[0])


@pytest.mark.process
@pytest.mark.parametrize("by_write", [False, True], ids=["gc", "write"])
def test_only_files_of_killed_processes_are_removed(tmp_path: Path, by_write: bool) -> None:
    """`gc`, and a write that needs room, remove the unfinished files of killed processes, and no other file."""
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


def store_over(folder: str | Path) -> Store:
    """Return a store over a folder, as each process has one."""
    return Store(shape(), (FileTier(folder),))


def hold_claim(folder: str, key: str, answers: object) -> None:
    """Take a claim and hold it."""
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
    """A claim that waits calls a function, and what this raises ends the wait."""
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
    """`gc` removes the locks that no process holds."""
    store, (one, two) = store_over(tmp_path), (each.recipe.key for each in ALL[:2])
    with store.claim([[one], [two]], 1):
        pass

    with store.claim([[two]], 1):
        FileTier(tmp_path).gc()
        assert [path.name for path in (tmp_path / "locks").iterdir()] == [f"{two}.lock"]
        with store_over(tmp_path).claim([[two]], 0) as claimed:
            assert not claimed
