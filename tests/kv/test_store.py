"""A store over tiers: the tier that serves, copies between tiers, and reports of faults."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest
import torch

from promptcache.diagnostics import StoreError, TierUnavailable
from promptcache.kv import (
    KV,
    Codec,
    FileTier,
    KVShape,
    Store,
    StoredEncoding,
    Tier,
    apply_codec,
    stored_bytes,
)
from tests.engine.asking import engine_of
from tests.kv.stored import DictTier, FailingTier, recipe

SHAPE = KVShape(num_layers=2, num_kv_heads=1, head_dim=4, dtype=torch.bfloat16, device=torch.device("cpu"))


def kv(num_tokens: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    both = torch.randn(2, 2, 1, num_tokens, 4, dtype=torch.bfloat16)
    return both[0], both[1]


class Broken(DictTier):
    """The tier of a caller whose methods raise errors of their own."""

    def read(self, *_: object) -> bytes | None:
        raise LookupError("the database is gone")

    write = delete = keys = read  # type: ignore[assignment]


def test_four_methods_make_a_tier() -> None:
    """The tier of a caller serves the KV that was put, after a restart as well, and damaged files are put again."""
    tier, made, (keys, values) = DictTier(), recipe("a"), kv()
    Store(SHAPE, (tier,)).put(made, keys, values)
    store = Store(SHAPE, (tier,))
    found = store.get(made.key)

    assert found.kv is not None
    assert (found.tier, torch.equal(found.kv.keys, keys)) == (Tier.REMOTE, True)
    assert (set(store.keys()), store.lacking([made.key])) == ({made.key}, {})
    *head, last = tier.files[made.key]
    tier.files[made.key] = bytes([*head, last ^ 1])
    (fault,) = Store(SHAPE, (tier,)).get(made.key).faults
    assert fault == f"remote: DictTier/{made.key}: does not match its checksum"
    assert tier.files == {}
    store.delete(made.key)


def test_no_error_of_a_tier_of_a_caller_is_raised() -> None:
    made, store = recipe("a"), Store(SHAPE, (Broken(),))

    assert store.get(made.key).faults == ("remote: Broken: cannot read: the database is gone",)
    assert store.put(made, *kv()) is not None
    assert store.lacking([made.key]) == {"Broken": {made.key}}
    assert store.faults() == (
        "remote: Broken: cannot write: the database is gone",
        "remote: Broken: cannot read: the database is gone",
    )


def test_hits_are_copied_to_faster_tiers(tmp_path: Path) -> None:
    made = recipe("up")
    Store(SHAPE, (FileTier("memory://up"),)).put(made, *kv())
    disk = FileTier(tmp_path)
    store = Store(SHAPE, (disk, FileTier("memory://up")), host_bytes=10**6)

    tiers = [store.get(made.key).tier]
    tiers.append(store.get(made.key).tier)
    store.memory.clear()
    tiers.append(store.get(made.key).tier)
    fresh = Store(SHAPE, (disk,))
    tiers.append(fresh.get(made.key).tier)

    assert tiers == [Tier.REMOTE, Tier.MEMORY, Tier.HOST, Tier.DISK]


@pytest.mark.parametrize("codec", list(Codec))
def test_host_memory_has_kv_as_its_codec_stores_it(tmp_path: Path, codec: Codec) -> None:
    """Host memory takes the bytes of a file, whether the KV was computed or read; KV is as the codec leaves it."""
    shape = KVShape(num_layers=2, num_kv_heads=2, head_dim=64, dtype=torch.bfloat16, device=torch.device("cpu"))
    made, disk = recipe("a", 512, codec), FileTier(tmp_path)
    keys, values = torch.randn(2, 2, 2, 512, 64, dtype=torch.bfloat16)
    expected = apply_codec(made, keys, values)
    store, reader = (Store(shape, (disk,), host_bytes=10**7) for _ in range(2))
    assert torch.equal(store.put(made, keys, values).keys, expected[0])
    reader.get(made.key)

    for each in (store, reader):
        assert each.host is not None
        each.memory.clear()
        found = each.get(made.key)
        assert found.tier is Tier.HOST
        assert found.kv is not None
        assert torch.equal(found.kv.keys, expected[0])
        assert torch.equal(found.kv.values, expected[1])
        assert each.host.nbytes() == found.moved_bytes == stored_bytes(codec, shape, 512)
    assert stored_bytes(Codec.INT8, shape, 512) < 0.6 * stored_bytes(Codec.FULL, shape, 512)


@pytest.mark.parametrize("method", ["delete", "get", "get_many"])
def test_an_invalid_key_changes_no_tier(tmp_path: Path, method: str) -> None:
    made = recipe("a")
    store = Store(SHAPE, (FileTier(tmp_path),))
    store.put(made, *kv())
    recipes = store.memory.recipes()

    with pytest.raises(StoreError, match="64 hexadecimal digits"):
        getattr(store, method)("x" if method in ("delete", "get") else [made.key, "x"])

    assert store.memory.recipes() == recipes


def test_parallel_reads_are_bounded(tmp_path: Path) -> None:
    started, waiting = [], []

    class Parallel(FileTier):
        max_parallel_reads = 3

        def read(self, key: str) -> bytes | BinaryIO | None:
            started.append(key)
            return super().read(key)

    class Watching(Store):
        def _decoded(self, stored: StoredEncoding) -> KV:
            waiting.append(len(started) - len(waiting))
            return super()._decoded(stored)

    made = [recipe(str(number)) for number in range(40)]
    first = Store(SHAPE, (FileTier(tmp_path),))
    for each in made:
        first.put(each, *kv())
    found = Watching(SHAPE, (Parallel(tmp_path),)).get_many(each.key for each in made)

    assert all(lookup.kv is not None for lookup in found.values())
    assert len(waiting) == 40
    assert max(waiting) <= 2 * 3 + 1


def test_without_room_kv_is_linked_in_its_file(tmp_path: Path) -> None:
    made, tier = recipe("a", 64), FileTier(tmp_path)
    Store(SHAPE, (tier,)).put(made, *kv(64))
    store = Store(SHAPE, (tier,), budget_bytes=8 * SHAPE.token_bytes)

    run = store.get(made.key).kv

    assert run is not None
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if made.key in line]
    ranges = [[int(address, 16) for address in line[0].split("-")] for line in maps]
    for states in (run.keys, run.values):
        assert any(start <= states.data_ptr() < stop for start, stop in ranges)
    assert store.memory.nbytes() == 0


def test_a_failing_tier_is_logged_once_and_reported_every_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Every lookup and `faults` report a failing tier; the log has the fault once, and once more after a recovery."""
    tier = FailingTier(tmp_path)
    tier.failing = dead = {"read": "the disk is gone", "write": "the disk is full"}
    store = Store(SHAPE, (tier,))
    with caplog.at_level(logging.WARNING):
        faults = [store.get(recipe(name).key).faults for name in "ab"]
        store.put(recipe("a"), *kv())
        store.put(recipe("b"), *kv())
        faults += [store.faults(), store.faults(), store.get(recipe("a").key).faults]
        in_log = [record.getMessage() for record in caplog.records]
        tier.failing = {}
        store.get(recipe("c").key)
        tier.failing = dead
        store.get(recipe("c").key)

    assert faults == [("disk: the disk is gone",)] * 2 + [("disk: the disk is full",), (), ()]
    assert in_log == ["the disk is gone", "the disk is full"]
    assert caplog.records[-1].getMessage() == "the disk is gone"
    assert len(caplog.records) == 3


def test_facts_are_kept_for_the_last_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store remembers the facts of a limited number of keys, those that were named last."""
    monkeypatch.setattr("promptcache.kv.store.MAX_NOTES", 2)
    tier = FileTier(tmp_path)
    store = Store(SHAPE, (tier,))
    made = [recipe(name) for name in "abc"]
    for each in (made[0], made[1], made[0], made[2]):
        store.note({each.key: {"schema": "trip"}})
    for each in made:
        store.put(each, *kv())

    stored = [tier.read_unverified(each.key) for each in made]

    assert [each and dict(each.facts) for each in stored] == [{"schema": "trip"}, {}, {"schema": "trip"}]


def test_threads_agree(tmp_path: Path) -> None:
    """Threads that put, get and delete under a small budget see only KV that was put."""
    store = Store(SHAPE, (FileTier(tmp_path),), budget_bytes=16 * SHAPE.token_bytes, host_bytes=12 * SHAPE.token_bytes)
    contents = {recipe(str(number)): kv() for number in range(6)}
    wrong: list[str] = []

    def work(seed: int) -> None:
        chance = torch.Generator().manual_seed(seed)
        for _ in range(60):
            number, act = torch.randint(0, 6, (2,), generator=chance).tolist()
            made = list(contents)[number]
            keys, values = contents[made]
            run = store.put(made, keys, values) if act < 2 else store.get(made.key).kv
            if act == 5:
                store.delete(made.key)
            if run is not None and not (torch.equal(run.keys, keys) and torch.equal(run.values, values)):
                wrong.append(made.key)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))

    assert not wrong
    assert store.memory.nbytes() <= 16 * SHAPE.token_bytes


SCHEMA = '<schema name="t"><module name="a">Hi.</module></schema>'
PROMPT = '<prompt schema="t"><a/> x</prompt>'


def below_a_file(folder: Path) -> str:
    (folder / "file").touch()
    return str(folder / "file" / "kept")


def without_a_subfolder(folder: Path) -> str:
    """A URL of a folder in which a file is where a folder is to be made."""
    (folder / "incoming").touch()
    return f"file://{folder}"


class Full(DictTier):
    """The tier of a caller, without room."""

    def write(self, key: str, data: bytes) -> None:
        raise OSError("no room")

    def probe(self) -> None:
        raise TierUnavailable("no room")


BAD = [lambda _: "ftp://127.0.0.1:1/x", below_a_file, without_a_subfolder, lambda _: Full()]


@pytest.mark.parametrize("place", BAD)
def test_a_store_that_cannot_be_used_costs_one_warning_and_no_answer(
    place: Callable[[Path], object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Requests are answered. The log has one line for each reason, usage has the faults, and `warm` says what is lost."""
    with caplog.at_level(logging.WARNING):
        engine = engine_of(schema=SCHEMA, store=place(tmp_path))
        answers = [engine.generate(PROMPT, max_new_tokens=2) for _ in range(3)]
        (report,) = engine.warm()

    reasons = [record.getMessage().partition(": cannot ")[2].partition(": ")[2] for record in caplog.records]
    assert 1 <= len(reasons) == len({*reasons})
    assert answers[0].usage.faults
    assert list(report.not_kept.values()) == [report.num_encodings]
    with pytest.raises(TierUnavailable):
        engine.store.probe()
