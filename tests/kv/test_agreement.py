"""All stores agree with a dict while their tiers fail, and no budget is exceeded after any step."""

import shutil
import tempfile
from pathlib import Path

import fsspec
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from promptcache.kv import KV, Codec, KVShape, Recipe, Store, Tier
from tests.conftest import law_examples
from tests.kv.stored import FailingTier
from tests.kv.stored import recipe as recipe_of

SHAPE = KVShape(num_layers=2, num_kv_heads=1, head_dim=2, dtype=torch.float32, device=torch.device("cpu"))
MEMORY_TOKENS, HOST_TOKENS, DISK_BYTES = 6, 8, 6_000
NAMES = "abcdef"


def recipe(name: str) -> Recipe:
    number = NAMES.index(name)
    codec = (Codec.FULL, Codec.FULL, Codec.INT8)[number % 3]
    return recipe_of(name, number + 1, codec, first=number)


RECIPES = {name: recipe(name) for name in NAMES}
NAME_OF = {made.key: name for name, made in RECIPES.items()}


def kv(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values of an encoding: zeros and ones, which quantization does not change."""
    generator = torch.Generator().manual_seed(NAMES.index(name))
    both = torch.randint(0, 2, (2, 2, 1, RECIPES[name].num_tokens, 2), generator=generator).float()
    return both[0], both[1]


class Agreement(RuleBasedStateMachine):
    """A store with tiers, one without and a dict: lookups return what was put, and only faults lose KV."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.remote_files = fsspec.filesystem("memory")
        self.remote_files.store.clear()
        self.disk = FailingTier(self.folder, budget_bytes=DISK_BYTES)
        self.remote = FailingTier("memory://kept")
        self.plain = Store(SHAPE)
        self.expected: set[str] = set()  # put and not deleted
        self.on_remote: set[str] = set()  # only a fault can lose these
        self.held: list[tuple[str, KV]] = []
        self.restart()

    def teardown(self) -> None:
        self.held.clear()
        shutil.rmtree(self.folder)

    @rule()
    def restart(self) -> None:
        self.held.clear()
        self.store = Store(
            SHAPE,
            (self.disk, self.remote),
            budget_bytes=MEMORY_TOKENS * SHAPE.token_bytes,
            host_bytes=HOST_TOKENS * SHAPE.token_bytes,
        )

    @rule(name=st.sampled_from(NAMES), hold=st.booleans())
    def put(self, name: str, hold: bool) -> None:
        run = self.store.put(RECIPES[name], *kv(name))
        self.check(name, run)
        self.plain.put(RECIPES[name], *kv(name))
        self.expected.add(name)
        if "write" not in self.remote.failing:
            self.on_remote.add(name)
        if hold:
            self.held.append((name, run))

    @rule(name=st.sampled_from(NAMES), hold=st.booleans())
    def get(self, name: str, hold: bool) -> None:
        found = self.store.get(RECIPES[name].key)
        if found.kv is None:
            assert name not in self.on_remote or "read" in self.remote.failing
            return
        assert name in self.expected
        self.check(name, found.kv)
        assert (found.moved_bytes > 0) == (found.tier is not Tier.MEMORY)
        if hold:
            self.held.append((name, found.kv))

    @rule(names=st.lists(st.sampled_from(NAMES)), hold=st.booleans())
    def get_many(self, names: list[str], hold: bool) -> None:
        found = self.store.get_many(RECIPES[name].key for name in names)
        plain = self.plain.get_many(RECIPES[name].key for name in names)
        assert set(found) == set(plain) == {RECIPES[name].key for name in names}
        for name in names:
            lookup = found[RECIPES[name].key]
            assert (plain[RECIPES[name].key].kv is not None) == (name in self.expected)
            if lookup.kv is None:
                assert name not in self.on_remote or "read" in self.remote.failing
                continue
            assert name in self.expected
            self.check(name, lookup.kv)
            if hold:
                self.held.append((name, lookup.kv))

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        self.store.delete(RECIPES[name].key)
        self.plain.delete(RECIPES[name].key)
        self.expected.discard(name)
        self.on_remote.discard(name)
        assert self.store.get(RECIPES[name].key).kv is None

    @rule(disk=st.sets(st.sampled_from(["read", "write"])), remote=st.sets(st.sampled_from(["read", "write"])))
    def fail(self, disk: set[str], remote: set[str]) -> None:
        self.disk.failing, self.remote.failing = (dict.fromkeys(each, "a planted fault") for each in (disk, remote))

    @rule(number=st.integers(0, 2**16), flipped=st.integers(0, 2**16))
    def damage_disk(self, number: int, flipped: int) -> None:
        files = sorted(self.folder.rglob("*.safetensors"))
        if files:
            path = files[number % len(files)]
            data = bytearray(path.read_bytes())
            data[flipped % len(data)] ^= 1 << (flipped % 8)
            path.unlink()  # mapped files stay as they are
            path.write_bytes(data)

    @rule(number=st.integers(0, 2**16), size=st.integers(0, 2**16))
    def damage_remote(self, number: int, size: int) -> None:
        files = sorted(path for path in self.remote_files.store if path.endswith(".safetensors"))
        if files:
            path = files[number % len(files)]
            data = self.remote_files.cat_file(path)
            self.remote_files.pipe_file(path, data[: size % max(1, len(data))])
            self.on_remote.discard(NAME_OF[Path(path).stem])

    @rule()
    def finish_requests(self) -> None:
        self.held.clear()

    def check(self, name: str, run: KV) -> None:
        keys, values = kv(name)
        assert torch.equal(run.keys, keys)
        assert torch.equal(run.values, values)

    @invariant()
    def agrees(self) -> None:
        """Stores hold only what was put, the plain store exactly what the dict has, and handles keep their KV."""
        assert {NAME_OF[key] for key in self.store.keys()} <= self.expected  # noqa: SIM118 # a store is no dict
        assert {NAME_OF[key] for key in self.plain.keys()} == self.expected  # noqa: SIM118
        for name, run in self.held:
            self.check(name, run)

    @invariant()
    def names_what_is_in_no_memory(self) -> None:
        """`absent` names the keys that neither memory has."""
        assert self.store.host is not None
        in_memory = {each.key for memory in (self.store.memory, self.store.host) for each in memory.recipes()}
        assert self.store.absent(NAME_OF) == set(NAME_OF) - in_memory
        assert {NAME_OF[key] for key in self.plain.absent(NAME_OF)} == set(NAME_OF.values()) - self.expected

    @invariant()
    def stays_within_budgets(self) -> None:
        assert self.store.host is not None
        assert self.store.memory.nbytes() <= MEMORY_TOKENS * SHAPE.token_bytes
        assert self.store.host.nbytes() <= HOST_TOKENS * SHAPE.token_bytes
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) <= DISK_BYTES
        tiers = (self.store.memory, self.store.host, self.disk, self.remote)
        assert self.store.nbytes() == sum(tier.nbytes() for tier in tiers)


@pytest.mark.law
@pytest.mark.long
def test_stores_agree() -> None:
    """A store with tiers agrees with a dict under any sequence of operations, restarts, faults and damage."""
    run_state_machine_as_test(Agreement, settings=settings(max_examples=law_examples(0.2), stateful_step_count=30))
