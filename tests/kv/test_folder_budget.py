"""The budget of a folder holds after every step, and the files that were used longest ago are evicted first."""

from __future__ import annotations

import errno
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest
from filelock import FileLock

from promptcache.diagnostics import TierUnavailable
from promptcache.kv import FileTier
from tests.kv.processes import finish, start
from tests.kv.stored import content, file_bytes, read, small, write

NAMES = "abcdefgh"
ALL = {name: small(name, 3 + 5 * index) for index, name in enumerate(NAMES)}
KEYS = {name: stored.recipe.key for name, stored in ALL.items()}
SIZES = {name: file_bytes(stored) for name, stored in ALL.items()}
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
    """The folder is never above its budget, because room is made before a write."""
    tier = FileTier(tmp_path, budget_bytes=THIRD)
    chance = random.Random(0)

    with watched(tmp_path, THIRD) as seen:
        for _ in range(40):
            assert write(tier, ALL[chance.choice(NAMES)])

    assert max(seen) > THIRD / 2


def test_an_encoding_as_large_as_the_budget_fits(tmp_path: Path) -> None:
    """An encoding of exactly the budget's size fits, and one that is a byte larger does not, which evicts nothing."""
    for budget_bytes, left in ((SIZES["h"], "h"), (SIZES["h"] - 1, "a")):
        tier = FileTier(tmp_path / str(budget_bytes), budget_bytes=budget_bytes)

        assert write(tier, ALL["a"])
        assert write(tier, ALL["h"]) is (left == "h")
        assert list(tier.keys()) == [KEYS[left]]


def test_an_eviction_that_fails_in_the_middle_is_only_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a file cannot be removed, the ones before it are evicted, and the next write counts right."""
    tier = FileTier(tmp_path, budget_bytes=sum(SIZES[name] for name in "abh"))
    for time_s, name in enumerate("abc"):
        write(tier, ALL[name])
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
            write(tier, ALL["h"])

    assert write(tier, ALL["h"])
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
    """Opening a folder with a smaller budget evicts down to it."""
    tier = FileTier(tmp_path)
    for stored in ALL.values():
        write(tier, stored)

    FileTier(tmp_path, budget_bytes=THIRD)

    assert 0 < used_bytes(tmp_path) <= THIRD


def churn(folder: str, seed: int) -> None:
    """Write and read at random."""
    tier = FileTier(folder, budget_bytes=THIRD)
    chance = random.Random(seed)
    for _ in range(30):
        name = chance.choice(NAMES)
        found = read(tier, KEYS[name])
        if found is None:
            write(tier, ALL[name])
        else:
            assert content(found) == content(ALL[name])


@pytest.mark.process
def test_processes_share_one_budget(tmp_path: Path) -> None:
    """Processes that share a folder keep its budget together, and read what was written."""
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
