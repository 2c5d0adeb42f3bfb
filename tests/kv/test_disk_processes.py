"""Processes share a folder, and are killed in it: nothing wrong is ever read, and nothing is left lying about."""

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
    """Files that are being written, or were."""
    return sorted(path.name for path in (folder / "incoming").iterdir())


def write_and_evict(folder: str, seed: int) -> None:
    """Write, read, evict, delete, pin and set aside for ever."""
    tier = DiskTier(folder, budget_bytes=BUDGET)
    chance = random.Random(seed)
    (Path(folder) / "started").touch()
    while True:
        each = chance.choice(ALL)
        key = each.recipe.key
        deed = chance.random()
        if deed < 0.1:
            tier.delete(key)
        elif deed < 0.2:
            spoil(Path(folder) / "encodings" / f"{key}.safetensors")
        elif deed < 0.25:
            (tier.pin if deed < 0.21 else tier.unpin)(key)
        else:
            tier.write(each)
            try:
                tier.read(key)
            except CorruptEncoding:
                tier.write(each)


def spoil(path: Path) -> None:
    """Put a damaged file in the place of a whole one, as a process that knows nothing of tiers would."""
    if path.exists():
        path.unlink()
        path.write_bytes(b"spoiled" * 1000)


def check_what_is_left(folder: Path) -> None:
    """The folder is within its budget; what a fresh process finds is right, and clean after `gc`."""
    parts = [path for part in ("encodings", "incoming", "quarantine") for path in (folder / part).iterdir()]
    assert sum(path.lstat().st_size for path in parts if path.name != "log.jsonl") <= BUDGET

    tier = DiskTier(folder, budget_bytes=BUDGET)
    for key in list(tier.keys()):
        with contextlib.suppress(CorruptEncoding):  # one of those that were spoiled
            found = tier.read(key)
            assert found is not None
            assert content(found) == content(BY_KEY[key])
    assert all(verdict.fault is None for verdict in tier.verify_all())
    tier.gc()
    assert incoming(folder) == []
    assert not (folder / "replacing.tmp").exists()
    for key in tier.pinned():  # pins of killed processes stay, and may leave no room
        tier.unpin(key)
    assert tier.write(ALL[0])


def kill_often(folder: Path, times: range) -> None:
    """Kill process after process in one folder, and look after each."""
    for seed in times:
        kill_at_random(folder, seed, 0.05, write_and_evict, str(folder), seed)
        check_what_is_left(folder)


def test_killed_processes_leave_nothing_wrong(tmp_path: Path) -> None:
    """After a kill at any moment of writing and evicting, what is served is right, and `gc` finds what was left."""
    kill_often(tmp_path, range(10))


@pytest.mark.slow
def test_two_hundred_killed_processes_leave_nothing_wrong(tmp_path: Path) -> None:
    """The same, 200 times."""
    kill_often(tmp_path, range(1000, 1200))


def die_while_writing(folder: str) -> None:
    """Die between the last byte and the new name."""
    tier = DiskTier(folder)
    os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    tier.write(ALL[0])


def test_only_what_nobody_writes_is_collected(tmp_path: Path) -> None:
    """What a dead process left goes; what a live one is writing, what was set aside, pins and foreign files stay."""
    tier = DiskTier(tmp_path)
    tier.write(ALL[1])
    tier.pin(ALL[2].recipe.key)
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


def test_what_the_dead_left_does_not_take_room_for_ever(tmp_path: Path) -> None:
    """Files of killed writers count, but are removed by whoever needs the room."""
    start(die_while_writing, str(tmp_path)).join()
    assert len(incoming(tmp_path)) == 1

    assert DiskTier(tmp_path, budget_bytes=file_bytes(ALL[0])).write(ALL[0])

    assert incoming(tmp_path) == []


def hold_claim(folder: str, key: str, told: object) -> None:
    """Take a claim and keep it."""
    with DiskTier(folder).claim(key, 10) as held:
        told.put(held)  # type: ignore[attr-defined]
        time.sleep(60)


def test_a_claim_is_held_by_one_and_ends_with_its_process(tmp_path: Path) -> None:
    """Another process waits until its time is over; after a kill the next one gets it at once; other keys are free."""
    tier = DiskTier(tmp_path)
    key, other = ALL[0].recipe.key, ALL[1].recipe.key
    told = context().SimpleQueue()
    process = start(hold_claim, str(tmp_path), key, told)
    assert told.get() is True

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


def test_locks_are_collected_but_not_while_they_are_held(tmp_path: Path) -> None:
    """`gc` leaves no lock behind that nobody holds."""
    tier = DiskTier(tmp_path)
    with tier.claim(ALL[0].recipe.key, 1), tier.claim(ALL[1].recipe.key, 1):
        pass

    with tier.claim(ALL[1].recipe.key, 1):
        DiskTier(tmp_path).gc()
        assert [path.name for path in (tmp_path / "locks").iterdir()] == [f"{ALL[1].recipe.key}.lock"]
        with DiskTier(tmp_path).claim(ALL[1].recipe.key, 0) as held:
            assert not held


def warm(folder: str, made: object) -> None:
    """Make each encoding that is not there, as the engine does: claim, look again, make, write."""
    tier = DiskTier(folder)
    for each in WARMED:
        key = each.recipe.key
        if tier.read(key) is None:
            with tier.claim(key, 60):
                if tier.read(key) is None:
                    time.sleep(0.005)  # so long does it take to encode
                    made.put(key)  # type: ignore[attr-defined]
                    tier.write(each)


WARMED = [small(f"warmed {number}") for number in range(40)]


def test_processes_that_warm_one_schema_share_the_work(tmp_path: Path) -> None:
    """However many processes want an encoding, one of them makes it."""
    made = context().SimpleQueue()
    children = [start(warm, str(tmp_path), made) for _ in range(3)]
    for child in children:
        finish(child)

    keys = []
    while not made.empty():
        keys.append(made.get())
    assert sorted(keys) == sorted(each.recipe.key for each in WARMED)
