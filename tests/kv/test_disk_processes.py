"""Processes that share a folder are killed at any moment, and the folder stays correct."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest

from promptcache.diagnostics import CorruptEncoding
from promptcache.kv.files.disk import DiskTier
from tests.kv.processes import context, finish, kill_at_random, start
from tests.kv.stored import content, file_bytes, random_stored, recipe, shape, small

ALL = [random_stored(recipe(f"large {number}", 200 + 100 * number), shape(), seed=number) for number in range(8)]
BUDGET = sum(map(file_bytes, ALL)) // 2
BY_KEY = {each.recipe.key: each for each in ALL}


def incoming(folder: Path) -> list[str]:
    """Return the unfinished files."""
    return sorted(path.name for path in (folder / "incoming").iterdir())


def write_and_evict(folder: str, seed: int) -> None:
    """Write, read, evict, delete and damage files in an endless loop."""
    tier = DiskTier(folder, budget_bytes=BUDGET)
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
            tier.write(each)
            try:
                tier.read(key)
            except CorruptEncoding:
                tier.write(each)


def spoil(path: Path) -> None:
    """Replace a file by a damaged one."""
    if path.exists():
        path.unlink()
        path.write_bytes(b"spoiled" * 1000)


def check_what_is_left(folder: Path) -> None:
    """Check that the folder holds its budget, that its files are right, and that `gc` cleans it."""
    parts = [path for part in ("encodings", "incoming", "quarantine") for path in (folder / part).iterdir()]
    assert sum(path.lstat().st_size for path in parts if path.name != "log.jsonl") <= BUDGET

    tier = DiskTier(folder, budget_bytes=BUDGET)
    for key in list(tier.keys()):
        with contextlib.suppress(CorruptEncoding):  # a damaged file
            found = tier.read(key)
            assert found is not None
            assert content(found) == content(BY_KEY[key])
    assert all(verdict.fault is None for verdict in tier.verify_all())
    tier.gc()
    assert incoming(folder) == []
    assert tier.write(ALL[0])


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
    tier = DiskTier(folder)
    os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    tier.write(ALL[0])


@pytest.mark.process
def test_gc_removes_only_files_of_killed_processes(tmp_path: Path) -> None:
    """`gc` removes only unfinished files of killed processes."""
    tier = DiskTier(tmp_path)
    tier.write(ALL[1])
    (tmp_path / "quarantine" / "bad").touch()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "encodings" / "notes.txt").touch()
    process = start(die_while_writing, str(tmp_path))
    process.join()
    (left,) = incoming(tmp_path)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}

    with tier._folder.locked():
        writing = tier._folder.open_incoming(ALL[3].recipe.key, 100)
    with writing:
        removed = DiskTier(tmp_path).gc()
        (kept,) = incoming(tmp_path)

    assert process.exitcode == -signal.SIGKILL
    assert removed == (left,)
    assert kept == writing.path.name
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before - {tmp_path / "incoming" / left}


@pytest.mark.process
def test_writes_remove_files_of_killed_processes(tmp_path: Path) -> None:
    """A write that needs room removes unfinished files of killed processes."""
    start(die_while_writing, str(tmp_path)).join()
    assert len(incoming(tmp_path)) == 1

    assert DiskTier(tmp_path, budget_bytes=file_bytes(ALL[0])).write(ALL[0])

    assert incoming(tmp_path) == []


def hold_claim(folder: str, key: str, answers: object) -> None:
    """Take a claim and hold it."""
    with DiskTier(folder).claim(key, 10) as held:
        answers.put(held)  # type: ignore[attr-defined]
        time.sleep(60)


@pytest.mark.process
def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    """A claim excludes other processes until its holder releases it or is killed."""
    tier = DiskTier(tmp_path)
    key, other = ALL[0].recipe.key, ALL[1].recipe.key
    answers = context().SimpleQueue()
    process = start(hold_claim, str(tmp_path), key, answers)
    assert answers.get() is True

    started = time.monotonic()
    with tier.claim(key, 0.2) as held:
        assert not held
    assert time.monotonic() - started >= 0.2
    with tier.claim(other, 0) as held:
        assert held

    process.kill()
    process.join()
    with tier.claim(key, 10) as held:
        assert held
        with tier.claim(key, 0) as twice:
            assert not twice
    with tier.claim(key, 0) as held:
        assert held


def test_gc_removes_locks_that_are_not_held(tmp_path: Path) -> None:
    """`gc` removes the locks that no process holds."""
    tier = DiskTier(tmp_path)
    with tier.claim(ALL[0].recipe.key, 1), tier.claim(ALL[1].recipe.key, 1):
        pass

    with tier.claim(ALL[1].recipe.key, 1):
        DiskTier(tmp_path).gc()
        assert [path.name for path in (tmp_path / "locks").iterdir()] == [f"{ALL[1].recipe.key}.lock"]
        with DiskTier(tmp_path).claim(ALL[1].recipe.key, 0) as held:
            assert not held


def warm(folder: str, made: object) -> None:
    """Write each missing encoding as the engine does: claim, look again, compute, write."""
    tier = DiskTier(folder)
    for each in WARMED:
        key = each.recipe.key
        if tier.read(key) is None:
            with tier.claim(key, 60):
                if tier.read(key) is None:
                    time.sleep(0.005)  # time to encode
                    made.put(key)  # type: ignore[attr-defined]
                    tier.write(each)


WARMED = [small(f"warmed {number}") for number in range(40)]


@pytest.mark.process
def test_processes_share_the_work_of_warming(tmp_path: Path) -> None:
    """Processes that warm the same encodings compute each of them once."""
    made = context().SimpleQueue()
    children = [start(warm, str(tmp_path), made) for _ in range(3)]
    for child in children:
        finish(child)

    keys = []
    while not made.empty():
        keys.append(made.get())
    assert sorted(keys) == sorted(each.recipe.key for each in WARMED)
