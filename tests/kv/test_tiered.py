"""A tiered store: who serves, what moves, what is told; `test_agreement.py` holds that all of it is right."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
import torch

from promptcache.diagnostics import TierUnavailable
from promptcache.kv import (
    Codec,
    KVHandle,
    KVShape,
    Lookup,
    MemoryStore,
    Pace,
    Recipe,
    StoredEncoding,
    Tier,
    TieredStore,
)
from promptcache.kv.files.disk import DiskTier
from promptcache.kv.files.remote import RemoteTier
from tests.kv.stored import recipe as recipe_of

SHAPE = KVShape(num_layers=2, num_kv_heads=1, head_dim=4, dtype=torch.bfloat16, device=torch.device("cpu"))


def recipe(name: str, num_tokens: int = 4, codec: Codec = Codec.FULL) -> Recipe:
    """The recipe of some tokens."""
    return recipe_of(name, num_tokens, codec)


def kv(num_tokens: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Random keys and values."""
    both = torch.randn(2, 2, 1, num_tokens, 4, dtype=torch.bfloat16)
    return both[0], both[1]


def memory(tokens: int | None = None, tier: Tier = Tier.MEMORY) -> MemoryStore:
    """A memory store with room for so many tokens."""
    return MemoryStore(SHAPE, budget_bytes=None if tokens is None else tokens * SHAPE.token_bytes, tier=tier)


class DeadTier(DiskTier):
    """A tier that does not answer."""

    dead = True

    def read(self, key: str, shape: KVShape | None = None) -> StoredEncoding | None:
        """Fail, or read."""
        if self.dead:
            raise TierUnavailable("the disk is gone")
        return super().read(key, shape)

    def write(self, stored: StoredEncoding) -> bool:
        """Fail, or write."""
        if self.dead:
            raise TierUnavailable("the disk is full")
        return super().write(stored)


class WatchedTier(DiskTier):
    """Remembers what it gave out last."""

    latest: StoredEncoding | None = None

    def read(self, key: str, shape: KVShape | None = None) -> StoredEncoding | None:
        """Read and remember."""
        self.latest = super().read(key, shape)
        return self.latest


@pytest.mark.parametrize("codec", Codec)
def test_a_restart_serves_what_was_served_before(tmp_path: Path, codec: Codec) -> None:
    """KV that `put` returned, that memory serves and that a new process reads from disk is the same bit for bit."""
    made = recipe("a", 40, codec)
    first = TieredStore(memory(), (DiskTier(tmp_path),))
    put = first.put(made, *kv(40))
    again, loaded = first.get(made.key).run, TieredStore(memory(), (DiskTier(tmp_path),)).get(made.key)

    assert loaded.tier is Tier.DISK
    for run in (again, loaded.run):
        assert run is not None
        assert torch.equal(run.keys.contiguous().view(torch.int16), put.keys.contiguous().view(torch.int16))
        assert torch.equal(run.values.contiguous().view(torch.int16), put.values.contiguous().view(torch.int16))


def test_what_is_found_below_moves_up(tmp_path: Path) -> None:
    """KV from a remote tier is on disk, in the host's memory and on the device afterwards."""
    made = recipe("up")
    TieredStore(memory(), (RemoteTier("memory://up"),)).put(made, *kv())
    disk = DiskTier(tmp_path)
    store = TieredStore(memory(), (disk, RemoteTier("memory://up")), host=memory(tier=Tier.HOST))

    tiers = [store.get(made.key).tier]
    tiers.append(store.get(made.key).tier)
    store.memory.delete(made.key)
    tiers.append(store.get(made.key).tier)
    fresh = TieredStore(memory(), (disk,))
    tiers.append(fresh.get(made.key).tier)

    assert tiers == [Tier.REMOTE, Tier.MEMORY, Tier.HOST, Tier.DISK]


def test_what_is_forgotten_leaves_memory_and_no_file(tmp_path: Path) -> None:
    """Keys that are not needed any more are freed in both memories; a blob tier still has them."""
    made = recipe("a")
    store = TieredStore(memory(), (DiskTier(tmp_path),), host=memory(tier=Tier.HOST))
    store.put(made, *kv())
    store.forget([made.key, recipe("never put").key])

    assert store.host is not None
    assert (store.memory.nbytes(), store.host.nbytes()) == (0, 0)
    assert store.get(made.key).tier is Tier.DISK


def test_what_is_not_persisted_can_be_persisted_later(tmp_path: Path) -> None:
    """KV that was put into memory only is lacking below until it is put again."""
    made, (keys, values) = recipe("a"), kv()
    store = TieredStore(memory(), (DiskTier(tmp_path),), host=memory(tier=Tier.HOST))
    store.put(made, keys, values, persist=False)

    assert store.host is not None
    assert (store.get(made.key).tier, store.host.nbytes()) == (Tier.MEMORY, 0)
    assert store.lacking([made.key]) == {str(tmp_path): {made.key}}
    store.put(made, keys, values)
    assert store.lacking([made.key]) == {}
    found = TieredStore(memory(), (DiskTier(tmp_path),)).get(made.key).run
    assert found is not None
    assert torch.equal(found.keys, keys)


def test_parallel_reads_do_not_run_far_ahead(tmp_path: Path) -> None:
    """However many keys are asked for, only a few encodings wait to be copied into memory."""
    started, waiting = [], []

    class Parallel(DiskTier):
        max_parallel_reads = 3

        def read(self, key: str, shape: KVShape | None = None) -> StoredEncoding | None:
            started.append(key)
            return super().read(key, shape)

    class Watching(MemoryStore):
        def offer(self, made: Recipe, keys: torch.Tensor, values: torch.Tensor) -> KVHandle | None:
            waiting.append(len(started) - len(waiting))
            return super().offer(made, keys, values)

    made = [recipe(str(number)) for number in range(40)]
    first = TieredStore(memory(), (DiskTier(tmp_path),))
    for each in made:
        first.put(each, *kv())
    found = TieredStore(Watching(SHAPE), (Parallel(tmp_path),)).get_many(each.key for each in made)

    assert all(lookup.run is not None for lookup in found.values())
    assert len(waiting) == 40
    assert max(waiting) <= 2 * 3 + 1


def test_loaded_neighbours_join(tmp_path: Path) -> None:
    """What is loaded from disk lies side by side in memory as announced."""
    made = [recipe(name) for name in "abc"]
    first = TieredStore(memory(), (DiskTier(tmp_path),))
    for each in made:
        first.put(each, *kv())
    store = TieredStore(memory(), (DiskTier(tmp_path),))
    store.reserve([(each.key, 4) for each in made])

    runs = [store.get(each.key).run for each in reversed(made)][::-1]

    assert all(run is not None for run in runs)
    assert len({id(run.slab) for run in runs if run is not None}) == 1
    assert [(run.start, run.stop) for run in runs if run is not None] == [(0, 4), (4, 8), (8, 12)]


def test_without_room_files_are_linked_in_place(tmp_path: Path) -> None:
    """Where memory has no room, KV is linked in the mapped file: nothing is copied and nothing is kept."""
    made, tier = recipe("a", 64), WatchedTier(tmp_path)
    TieredStore(memory(), (tier,)).put(made, *kv(64))
    store = TieredStore(memory(8), (tier,))

    run = store.get(made.key).run

    assert run is not None
    assert tier.latest is not None
    mapped = tier.latest.tensors
    assert (run.keys.data_ptr(), run.values.data_ptr()) == (mapped["keys"].data_ptr(), mapped["values"].data_ptr())
    assert store.memory.held_bytes == 0


def test_loading_can_be_left_to_where_it_pays(tmp_path: Path) -> None:
    """With measured figures, a tier that is slower than encoding is not asked; without them it is."""
    made, tier = recipe("a"), DiskTier(tmp_path)
    TieredStore(memory(), (tier,)).put(made, *kv())

    def found(latency_s: float | None) -> Lookup:
        pace = None
        if latency_s is not None:
            pace = Pace(encode_tokens_per_s=100, load_bytes_per_s={Tier.DISK: 1e9}, latency_s={Tier.DISK: latency_s})
        store = TieredStore(memory(), (tier,), pace=pace)
        store.reserve([(made.key, 4)])
        return store.get(made.key)

    assert found(None).run is not None
    assert found(0.039).run is not None
    assert found(0.041).run is None


def test_a_tier_that_fails_is_logged_once_and_told_every_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A lookup says what failed on its way, `faults` what failed at a put; the log has each trouble once, and again when
    it comes back."""
    tier = DeadTier(tmp_path)
    store = TieredStore(memory(), (tier,))
    with caplog.at_level(logging.WARNING):
        faults = [store.get(recipe(name).key).faults for name in "ab"]
        store.put(recipe("a"), *kv())
        store.put(recipe("b"), *kv())
        faults += [store.faults(), store.faults(), store.get(recipe("a").key).faults]
        in_log = [record.getMessage() for record in caplog.records]
        tier.dead = False
        store.get(recipe("c").key)
        tier.dead = True
        store.get(recipe("c").key)

    assert faults == [("disk: the disk is gone",)] * 2 + [("disk: the disk is full",), (), ()]
    assert in_log == ["the disk is gone", "the disk is full"]
    assert caplog.records[-1].getMessage() == "the disk is gone"
    assert len(caplog.records) == 3


def test_what_memory_evicts_is_on_disk_already(tmp_path: Path) -> None:
    """Nothing is written when memory runs full, and nothing is lost."""
    store = TieredStore(memory(8), (DiskTier(tmp_path),))
    made = [recipe(name) for name in "abcde"]
    for each in made:
        store.put(each, *kv())

    assert store.tier_bytes()[Tier.MEMORY] == 8 * SHAPE.token_bytes
    assert all(store.get(each.key).run is not None for each in made)


def test_what_the_host_evicts_stays_whole_for_who_has_it(tmp_path: Path) -> None:
    """KV found in the host's memory belongs to its request, also where the device has no room to keep it."""
    store = TieredStore(memory(0), (), host=memory(4, Tier.HOST))
    keys, values = kv()
    store.put(recipe("a"), keys, values)
    found = store.get(recipe("a").key)
    store.put(recipe("b"), *kv())

    assert found.tier is Tier.HOST
    assert found.run is not None
    assert torch.equal(found.run.keys, keys)
    assert torch.equal(found.run.values, values)
    assert store.get(recipe("a").key).run is None


def test_threads_agree(tmp_path: Path) -> None:
    """Many threads that put, get, delete and hold under a small budget never see anything but what was put."""
    store = TieredStore(memory(16), (DiskTier(tmp_path),), host=memory(12, Tier.HOST))
    contents = {recipe(str(number)): kv() for number in range(6)}
    wrong: list[str] = []

    def work(seed: int) -> None:
        chance = torch.Generator().manual_seed(seed)
        for _ in range(60):
            number, act = torch.randint(0, 6, (2,), generator=chance).tolist()
            made = list(contents)[number]
            keys, values = contents[made]
            run = store.put(made, keys, values) if act < 2 else store.get(made.key).run
            if act == 5:
                store.delete(made.key)
            if run is not None and not (torch.equal(run.keys, keys) and torch.equal(run.values, values)):
                wrong.append(made.key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong
    assert store.memory.held_bytes <= 16 * SHAPE.token_bytes
