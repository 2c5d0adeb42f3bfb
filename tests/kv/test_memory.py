"""The memory store agrees with a dict, and never overwrites memory that a request uses."""

from __future__ import annotations

import weakref
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from promptcache.diagnostics import StoreError
from promptcache.kv import Allocation, KVHandle, KVShape, MemoryStore, Slab, Store, open_buffers, size_class
from tests.conftest import law_examples
from tests.kv.stored import recipe

SHAPE = KVShape(num_layers=2, num_kv_heads=1, head_dim=2, dtype=torch.float32, device=torch.device("cpu"))


class GPUShape(KVShape):
    """A shape of KV that is said to be on a GPU."""

    @property
    def is_on_gpu(self) -> bool:
        """Always."""
        return True


GPU_SHAPE = GPUShape(num_layers=2, num_kv_heads=1, head_dim=2, dtype=torch.float32, device=torch.device("cpu"))
SIZES = {"a": 1, "b": 2, "c": 3, "d": 1, "e": 5, "f": 4}
RECIPES = {name: recipe(name, size) for name, size in SIZES.items()}
NAMES = st.sampled_from(sorted(SIZES))


def kv(num_tokens: int, value: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values of one constant each."""
    size = (SHAPE.num_layers, SHAPE.num_kv_heads, num_tokens, SHAPE.head_dim)
    return torch.full(size, value), torch.full(size, -value)


def check_conservation(store: MemoryStore) -> None:
    """Check that every token of a block is free, reserved or allocated, and only one of these."""
    reservations = set(store._reservations._by_key.values())
    for block in store._blocks:
        block.collect()
        reserved = [each.range(key) for each in reservations if each.block is block for key in each.reserved]
        ranges = [*block.free, *reserved, *(each.range for each in block.allocations)]
        assert sorted(number for each in ranges for number in range(*each)) == list(range(block.free.capacity))


class Agreement(RuleBasedStateMachine):
    """A store, a dict, and requests that hold handles."""

    budget_tokens: int | None = None
    shape = SHAPE

    def __init__(self) -> None:
        super().__init__()
        budget = None if self.budget_tokens is None else self.budget_tokens * SHAPE.token_bytes
        self.store = MemoryStore(self.shape, block_bytes=6 * SHAPE.token_bytes, budget_bytes=budget)
        self.expected: dict[str, float] = {}  # first content of each name that was put and not deleted
        self.held: list[tuple[str, KVHandle, float]] = []
        self.counter = 0.0
        self.buffers = self.store.buffers(5 * SHAPE.token_bytes)
        self.taken: dict[Allocation, float] = {}

    def kept(self) -> set[str]:
        """Return the names that the store holds."""
        keys = set(self.store.keys())
        return {name for name in SIZES if RECIPES[name].key in keys}

    @rule(names=st.lists(NAMES, unique=True))
    def reserve(self, names: list[str]) -> None:
        """Announce keys."""
        self.store.reserve([(RECIPES[name].key, SIZES[name]) for name in names])

    @rule(name=NAMES, hold=st.booleans())
    def put(self, name: str, hold: bool) -> None:
        """Put new content; stored content stays, and the result is the content that `get` returns from now on."""
        before = self.kept()
        self.counter += 1
        if name not in before:
            self.expected[name] = self.counter
        run = self.store.put(RECIPES[name], *kv(SIZES[name], self.counter))
        assert (run.keys == self.expected[name]).all()
        if name not in self.kept():
            del self.expected[name]
            assert self.budget_tokens is not None
            assert self.held or self.budget_tokens < SIZES[name]
            assert self.kept() == before
        for other in before - self.kept():
            assert (other, self.expected[other]) not in [(held, value) for held, _, value in self.held]
            del self.expected[other]
        if hold:
            self.held.append((name, run, float(run.keys.flatten()[0])))

    @rule(size=st.integers(1, 6), hold=st.booleans())
    def take_buffer(self, size: int, hold: bool) -> None:
        """Take a buffer and fill it. No encoding is evicted for it, and without room no buffer is dropped."""
        before = self.kept()
        live = set(self.buffers)
        taken = self.buffers.take(size)
        assert self.kept() == before
        assert taken is not None or set(self.buffers) == live
        assert taken is not None or size > 5 or self.budget_tokens is not None or self.held
        if taken is not None:
            buffer, run = taken
            self.counter += 1
            run.keys.fill_(self.counter)
            run.values.fill_(-self.counter)
            self.taken[buffer] = self.counter
            if hold:
                self.held.append(("", run, self.counter))

    @rule(number=st.integers(0, 100), hold=st.booleans())
    def use_buffer(self, number: int, hold: bool) -> None:
        """Use a buffer, if the store has not taken it back."""
        if self.taken:
            buffer, value = list(self.taken.items())[number % len(self.taken)]
            run = self.buffers.handle(buffer)
            assert (run is None) == (buffer not in self.buffers)
            if run is not None and hold:
                self.held.append(("", run, value))

    @rule(number=st.integers(0, 100))
    def drop_buffer(self, number: int) -> None:
        """Free a buffer."""
        if self.taken:
            self.buffers.drop(list(self.taken)[number % len(self.taken)])

    @rule()
    def run_out_of_memory(self) -> None:
        """Free the buffers that are not in use, if their memory is no part of a budget."""
        before = set(self.buffers)
        idle = set[Allocation]() if self.budget_tokens is not None else {each for each in before if not each.in_use}
        assert self.buffers.drop_idle() == bool(idle)
        assert set(self.buffers) == before - idle

    @invariant()
    def buffers_hold(self) -> None:
        """Live buffers keep their content and stay within their limit; the others are reported once."""
        while self.buffers.taken_back:
            del self.taken[self.buffers.taken_back.popleft()]
        assert set(self.buffers) == set(self.taken)
        assert self.buffers.nbytes <= self.buffers.limit_bytes
        for buffer, value in self.taken.items():
            run = buffer.handle()
            assert (run.keys == value).all()
            assert (run.values == -value).all()

    @rule(name=NAMES)
    def hold(self, name: str) -> None:
        """Get a handle and hold it, as a request does."""
        run = self.store.get(RECIPES[name].key).handle
        assert (run is None) == (name not in self.expected)
        if run is not None:
            self.held.append((name, run, self.expected[name]))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        """Delete a key."""
        self.store.delete(RECIPES[name].key)
        self.expected.pop(name, None)

    @rule(number=st.integers(0, 100))
    def finish_request(self, number: int) -> None:
        """Drop one handle."""
        if self.held:
            del self.held[number % len(self.held)]

    @rule()
    def finish_requests(self) -> None:
        """Drop all handles."""
        self.held.clear()

    @invariant()
    def agrees(self) -> None:
        """Keys, bytes and contents are those of the dict, and held KV is unchanged."""
        assert self.kept() == set(self.expected)
        assert self.store.nbytes() == sum(SIZES[name] for name in self.expected) * SHAPE.token_bytes
        for name, value in self.expected.items():
            run = self.store.get(RECIPES[name].key).handle
            assert run is not None
            assert run.num_tokens == SIZES[name]
            assert (run.keys == value).all()
            assert (run.values == -value).all()
        for _, run, value in self.held:
            assert (run.keys == value).all()

    @invariant()
    def conserves(self) -> None:
        """Every token of a block is free, reserved or allocated, and only one of these."""
        check_conservation(self.store)

    @invariant()
    def stays_within_its_budget(self) -> None:
        """Kept KV and KV that requests hold of it fit the budget; other KV is unmanaged."""
        kept = [self.store.get(RECIPES[name].key).handle for name in self.expected]
        managed = {(run.start, run.stop): run for run in kept if run is not None}
        slabs = {id(run.slab) for run in kept if run is not None}
        unmanaged = 0
        for _, run, _ in {id(each[1]): each for each in self.held}.values():
            if run.slab.capacity == run.num_tokens and id(run.slab) not in slabs and run in self.store._unmanaged:
                unmanaged += run.nbytes
            else:
                managed[run.start, run.stop] = run
                slabs.add(id(run.slab))
        assert self.store.unmanaged_bytes == unmanaged
        if self.budget_tokens is not None:
            for buffer in self.taken:
                run = buffer.handle()
                managed[run.start, run.stop] = run
            assert self.store.allocated_bytes == sum(run.nbytes for run in managed.values())
            assert self.store.allocated_bytes <= self.budget_tokens * SHAPE.token_bytes
            assert len(slabs) <= 1
            assert all(run.slab.capacity <= self.budget_tokens for run in managed.values())


class SmallBudget(Agreement):
    """Budget for half of the encodings."""

    budget_tokens = 8


class TinyBudget(Agreement):
    """Budget for one of most encodings."""

    budget_tokens = 4


class OnGPU(Agreement):
    """No budget, on a GPU."""

    shape = GPU_SHAPE

    @invariant()
    def buffers_have_own_memory(self) -> None:
        """No buffer shares its memory, so memory is free when its buffer is."""
        for buffer in self.taken:
            assert buffer.range == (0, buffer.handle().slab.capacity)


for _machine in (Agreement, SmallBudget, TinyBudget, OnGPU):
    _machine.TestCase.settings = settings(max_examples=law_examples(0.4))

TestAgreement = pytest.mark.law(Agreement.TestCase)
TestSmallBudget = pytest.mark.law(SmallBudget.TestCase)
TestTinyBudget = pytest.mark.law(TinyBudget.TestCase)
TestOnGPU = pytest.mark.law(OnGPU.TestCase)


def test_reserved_keys_are_adjacent() -> None:
    """Reserved keys are adjacent in the announced order, for any order of `put`."""
    store = MemoryStore(SHAPE)
    store.reserve([(RECIPES[name].key, SIZES[name]) for name in "abc"])

    runs = {name: store.put(RECIPES[name], *kv(SIZES[name], 1.0)) for name in "cab"}

    assert len({id(run.slab) for run in runs.values()}) == 1
    assert (runs["a"].stop, runs["b"].stop) == (runs["b"].start, runs["c"].start)


def test_a_buffer_takes_reserved_ranges() -> None:
    """Ranges that are reserved cannot be moved, so they are given up if a buffer needs the room around them."""
    store = MemoryStore(SHAPE, budget_bytes=8 * SHAPE.token_bytes)
    buffers = store.buffers(5 * SHAPE.token_bytes)
    store.reserve([(RECIPES[name].key, SIZES[name]) for name in "ab"])
    buffers.take(2)
    store.put(RECIPES["a"], *kv(SIZES["a"], 1.0))  # the range of "b" lies behind it

    found = buffers.take(4)

    assert found is not None
    check_conservation(store)
    run = store.get(RECIPES["a"].key).handle
    assert run is not None
    assert (run.keys == 1.0).all()
    assert store.put(RECIPES["b"], *kv(SIZES["b"], 2.0)).num_tokens == 2


def test_memory_is_allocated_with_the_first_encoding() -> None:
    """Reserving allocates no memory, and a row that does not fit starts a new block."""
    store = MemoryStore(SHAPE, block_bytes=4 * SHAPE.token_bytes)
    store.reserve([(RECIPES[name].key, SIZES[name]) for name in "abc"])

    runs = [store.put(RECIPES[name], *kv(SIZES[name], 1.0)) for name in "abc"]

    assert [run.slab.capacity for run in runs] == [3, 3, 3]
    assert runs[0].slab is runs[1].slab
    assert runs[2].slab is not runs[1].slab


def test_lookups_do_not_grow_the_bookkeeping() -> None:
    """Repeated lookups do not grow the bookkeeping."""
    store = MemoryStore(SHAPE)
    store.put(RECIPES["a"], *kv(SIZES["a"], 1.0))
    for _ in range(100):
        store.get(RECIPES["a"].key)

    assert not any(block.unused for block in store._blocks)


@pytest.mark.parametrize("budget", [None, 5])
def test_freed_ranges_are_reused(budget: int | None) -> None:
    """A range is reused when its encoding is deleted and no request holds it, and not before."""
    store = MemoryStore(SHAPE, budget_bytes=None if budget is None else budget * SHAPE.token_bytes)
    store.reserve([(RECIPES["c"].key, 3), (RECIPES["b"].key, 2)])
    kept = store.put(RECIPES["b"], *kv(2, 1.0))
    held = store.put(RECIPES["c"], *kv(3, 1.0))
    place = held.slab, held.start, held.stop
    store.delete(RECIPES["c"].key)
    early = store.put(RECIPES["a"], *kv(1, 2.0))
    store.delete(RECIPES["a"].key)
    del held
    late = store.put(RECIPES["a"], *kv(1, 2.0))

    assert early.slab is not place[0]
    assert late.slab is place[0] is kept.slab
    assert place[1] <= late.start < place[2]


def test_a_full_block_is_compacted() -> None:
    """A full block is compacted; moved KV keeps its content, and held KV is not moved."""
    store = MemoryStore(SHAPE, budget_bytes=12 * SHAPE.token_bytes)
    made = [recipe(str(number), 2) for number in range(6)]
    for number, each in enumerate(made):
        store.put(each, *kv(2, float(number)))
    held = store.get(made[0].key).handle
    for number in (1, 3, 5):
        store.delete(made[number].key)
    run = store.put(RECIPES["e"], *kv(5, 9.0))

    assert held is not None
    assert run.slab is held.slab
    assert (held.start, (held.keys == 0.0).all()) == (0, True)
    for number in (2, 4):
        moved = store.get(made[number].key).handle
        assert moved is not None
        assert (moved.keys == number).all()
        assert (moved.values == -number).all()


def filled(sizes: list[int]) -> tuple[MemoryStore, list[str]]:
    """Return a store that encodings of these sizes fill, and their keys in memory order."""
    store = MemoryStore(SHAPE, budget_bytes=sum(sizes) * SHAPE.token_bytes)
    keys = []
    for number, size in enumerate(sizes):
        made_of = recipe(str(number), size)
        store.put(made_of, *kv(size, float(number)))
        keys.append(made_of.key)
    return store, keys


def start_of(store: MemoryStore, key: str) -> int:
    """Return the start of an encoding, and check its content."""
    run = store.get(key).handle
    assert run is not None
    assert len(run.keys.unique()) == 1
    return run.start


def test_compaction_stops_at_allocations_in_use() -> None:
    """Compaction does not move KV past an allocation in use."""
    store, keys = filled([2, 2, 2, 2, 2, 2])
    held = store.get(keys[1]).handle
    for number in (0, 2, 5):
        store.delete(keys[number])

    run = store.put(RECIPES["f"], *kv(4, 9.0))

    assert held is not None
    assert (held.start, (held.keys == 1.0).all(), run.slab is held.slab) == (2, True, True)
    assert [start_of(store, keys[number]) for number in (3, 4)] == [4, 6]
    assert (run.start, run.stop) == (8, 12)
    check_conservation(store)


@pytest.mark.parametrize(
    ("sizes", "name", "starts", "start"),
    [([1, 2, 1, 3, 2, 1], "c", [1, 3, 9], 6), ([2, 3, 2, 1, 2, 1], "f", [2, 5, 10], 6)],
    ids=["without the first hole", "between the last two"],
)
def test_compaction_moves_as_little_as_possible(sizes: list[int], name: str, starts: list[int], start: int) -> None:
    """Compaction joins the free ranges with the fewest tokens between them."""
    store, keys = filled(sizes)
    for number in (0, 2, 4):
        store.delete(keys[number])

    run = store.put(RECIPES[name], *kv(SIZES[name], 9.0))

    assert [start_of(store, keys[number]) for number in (1, 3, 5)] == starts
    assert run.start == start
    check_conservation(store)


def test_a_failed_allocation_leaves_the_store_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed memory allocation leaves the store empty and usable."""
    store = MemoryStore(SHAPE, budget_bytes=SIZES["c"] * SHAPE.token_bytes)
    with monkeypatch.context() as patch:
        patch.setattr(Slab, "empty", Mock(side_effect=MemoryError("no memory")))
        with pytest.raises(MemoryError, match="no memory"):
            store.put(RECIPES["c"], *kv(SIZES["c"], 1.0))

    check_conservation(store)
    store.put(RECIPES["c"], *kv(SIZES["c"], 1.0))
    assert list(store.keys()) == [RECIPES["c"].key]


@pytest.mark.parametrize("settled", [False, True])
def test_a_key_with_another_length_keeps_no_reservation(settled: bool) -> None:
    """A key with another length than announced is stored elsewhere, and its range is free after `delete`."""
    store = MemoryStore(SHAPE, budget_bytes=7 * SHAPE.token_bytes)
    store.reserve([(RECIPES["c"].key, 2), (RECIPES["b"].key, 2)])
    if settled:
        store.put(RECIPES["b"], *kv(SIZES["b"], 1.0))

    store.put(RECIPES["c"], *kv(SIZES["c"], 2.0))
    store.delete(RECIPES["c"].key)
    store.put(RECIPES["b"], *kv(SIZES["b"], 1.0))

    check_conservation(store)
    assert store.put(RECIPES["e"], *kv(SIZES["e"], 3.0)).slab is store.get(RECIPES["b"].key).handle.slab  # type: ignore[union-attr]
    assert store.unmanaged_bytes == 0


@pytest.mark.parametrize("neighbour", [True, False], ids=["while a neighbour is there", "before any came"])
def test_deleting_a_reserved_key_frees_its_range(neighbour: bool) -> None:
    """Deleting a reserved key that was never stored frees its range."""
    store = MemoryStore(SHAPE, block_bytes=6 * SHAPE.token_bytes)
    store.reserve([(RECIPES[name].key, SIZES[name]) for name in "ab"])
    if neighbour:
        store.put(RECIPES["a"], *kv(1, 1.0))

    store.delete(RECIPES["b"].key)

    assert store._reservations._by_key.keys() == {RECIPES["a"].key}
    store.put(RECIPES["a"], *kv(1, 1.0))
    (block,) = store._blocks
    assert sum(each.size for each in block.free) == block.free.capacity - SIZES["a"]


def test_reservations_outlive_their_block() -> None:
    """Without a budget, an empty block is freed, and reserved keys are adjacent in the next one."""
    store = MemoryStore(SHAPE)
    store.reserve([(RECIPES[name].key, SIZES[name]) for name in "abc"])
    store.put(RECIPES["a"], *kv(SIZES["a"], 1.0))
    store.delete(RECIPES["a"].key)
    assert store.allocated_bytes == 0

    late, early = (store.put(RECIPES[name], *kv(SIZES[name], 2.0)) for name in "cb")

    assert (early.slab, early.stop) == (late.slab, late.start)
    assert store.allocated_bytes == store.nbytes() == early.nbytes + late.nbytes
    check_conservation(store)


def test_a_budget_above_the_memory_is_refused() -> None:
    """A budget above the memory of the machine is refused when the store is created."""
    with pytest.raises(StoreError, match="a budget of 1,000,000,000,000,000 bytes is more memory than there is"):
        MemoryStore(SHAPE, budget_bytes=10**15)


def test_a_negative_budget_is_refused() -> None:
    """A negative budget is refused."""
    with pytest.raises(StoreError, match="budget_bytes=-1 is not allowed"):
        MemoryStore(SHAPE, budget_bytes=-1)


@pytest.mark.parametrize("wrong", ["layers", "heads", "width", "dtype"])
def test_kv_of_another_shape_is_refused(wrong: str) -> None:
    """KV of another shape is refused with a message, and nothing is stored."""
    size = [2, 1, 3, 2]
    if wrong != "dtype":
        size[{"layers": 0, "heads": 1, "width": 3}[wrong]] += 1
    dtype = torch.float64 if wrong == "dtype" else torch.float32
    store = MemoryStore(SHAPE)

    with pytest.raises(StoreError, match="this store holds"):
        store.put(RECIPES["c"], torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype))

    assert list(store.keys()) == []


def test_the_memory_store_is_a_store() -> None:
    """It implements the interface."""
    assert isinstance(MemoryStore(SHAPE), Store)


def test_encodings_take_the_room_of_buffers_first() -> None:
    """An encoding takes back the least recently used buffer before it evicts another encoding."""
    store = MemoryStore(SHAPE, budget_bytes=8 * SHAPE.token_bytes)
    buffers = store.buffers(4 * SHAPE.token_bytes)
    store.put(RECIPES["c"], *kv(SIZES["c"], 1.0))
    old, new = (taken[0] for taken in (buffers.take(2), buffers.take(2)) if taken is not None)
    assert buffers.handle(old) is not None  # the other one is the least recently used now

    store.put(RECIPES["b"], *kv(SIZES["b"], 2.0))

    assert [each in buffers for each in (old, new)] == [True, False]
    assert set(store.keys()) == {RECIPES[name].key for name in "bc"}
    assert list(buffers.taken_back) == [new]


def test_a_buffer_without_room_drops_no_other() -> None:
    """A buffer that cannot fit beside the encodings drops no other buffer; one that can fit drops only the oldest."""
    store = MemoryStore(SHAPE, budget_bytes=8 * SHAPE.token_bytes)
    buffers = store.buffers(8 * SHAPE.token_bytes)
    store.put(RECIPES["c"], *kv(SIZES["c"], 1.0))
    live = [taken[0] for taken in (buffers.take(1) for _ in range(5)) if taken is not None]

    assert buffers.take(6) is None
    assert list(buffers) == live
    assert buffers.take(2) is not None
    assert list(buffers)[:3] == live[2:]


def test_a_buffer_drops_others_in_its_own_gap() -> None:
    """Buffers on the other side of KV in use stay, because dropping them would not make the room adjacent."""
    store = MemoryStore(SHAPE, budget_bytes=8 * SHAPE.token_bytes)
    buffers = store.buffers(8 * SHAPE.token_bytes)
    first = buffers.take(2)
    run = store.put(RECIPES["a"], *kv(SIZES["a"], 1.0))
    second = buffers.take(5)
    assert first is not None
    assert second is not None
    kept, dropped = first[0], second[0]
    del first, second

    assert buffers.take(4) is not None
    assert [each in buffers for each in (kept, dropped)] == [True, False]
    assert (run.keys == 1.0).all()


def test_buffers_of_an_owner_that_is_gone_are_free() -> None:
    """The memory of buffers is free when nothing refers to their owner or their handles."""
    store = MemoryStore(SHAPE, budget_bytes=8 * SHAPE.token_bytes)
    buffers = store.buffers(8 * SHAPE.token_bytes)
    taken = buffers.take(5)
    assert taken is not None
    run = taken[1]
    del buffers, taken

    assert store.allocated_bytes == 5 * SHAPE.token_bytes
    del run
    assert store.allocated_bytes == 0


@given(sizes=st.lists(st.tuples(st.integers(1, 400), st.booleans()), max_size=30), limit=st.integers(1, 1000))
def test_memory_of_buffers_on_a_gpu_is_within_their_limit(sizes: list[tuple[int, bool]], limit: int) -> None:
    """All memory of buffers, used or idle, is within the limit, and an eighth of a buffer at most is not used."""
    buffers = MemoryStore(GPU_SHAPE).buffers(limit * SHAPE.token_bytes)
    slabs, held = weakref.WeakSet[Slab](), []
    for size, hold in sizes:
        taken = buffers.take(size)
        if taken is None:
            assert size_class(size) + sum(handle.num_tokens for handle in held) > limit
            continue
        handle = taken[1]
        slabs.add(handle.slab)
        assert size <= handle.num_tokens == handle.slab.capacity <= size * 9 / 8
        held += [handle] * hold
        del taken, handle
        assert sum(slab.capacity for slab in slabs) <= limit


def test_few_sizes_are_allocated() -> None:
    """There are eight sizes between a power of two and the next one, and each size is its own class."""
    sizes = {size_class(each) for each in range(513, 1025)}

    assert sorted(sizes) == [576, 640, 704, 768, 832, 896, 960, 1024]
    assert {each: size_class(each) for each in (*range(1, 17), *sizes)} == {
        each: each for each in (*range(1, 17), *sizes)
    }


class Device:
    """A device with memory for some tokens."""

    def __init__(self, num_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make slabs of stores take its memory."""
        self._num_tokens, self._empty = num_tokens, Slab.empty
        self._slabs = weakref.WeakSet[Slab]()
        monkeypatch.setattr(Slab, "empty", self.allocate)

    def allocate(self, shape: KVShape, capacity: int) -> Slab:
        """Return a slab, or raise as PyTorch does."""
        if sum(slab.capacity for slab in self._slabs) + capacity > self._num_tokens:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        slab = self._empty(shape, capacity)
        self._slabs.add(slab)
        return slab


def test_idle_buffers_make_room_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoding without memory takes that of the least recently used buffers. Buffers in use stay."""
    Device(16, monkeypatch)
    store = MemoryStore(GPU_SHAPE)
    buffers = store.buffers(100 * SHAPE.token_bytes)
    used, old, newer, newest = (taken for taken in map(buffers.take, (4, 4, 4, 4)) if taken is not None)
    in_use = used[1]
    live = [each[0] for each in (used, old, newer, newest)]
    del used, old, newer, newest

    store.put(RECIPES["e"], *kv(5, 1.0))

    assert list(buffers) == [live[0], live[3]]
    assert store.get(RECIPES["e"].key).handle is not None
    with pytest.raises(torch.OutOfMemoryError):
        store.put(recipe("long", 11), *kv(11, 1.0))
    assert list(buffers) == [live[0]]
    assert buffers.handle(live[0]) is in_use


def test_a_buffer_without_memory_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers that are not in use make room for a new one. If they do not suffice, there is none."""
    Device(8, monkeypatch)
    buffers = MemoryStore(GPU_SHAPE).buffers(100 * SHAPE.token_bytes)
    assert buffers.take(6) is not None
    second = buffers.take(6)
    assert second is not None

    assert buffers.take(3) is None
    assert list(buffers) == [second[0]]


def test_buffers_take_a_quarter_of_what_a_gpu_has_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a budget and a limit of their own. Memory that PyTorch holds and does not use is free."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (500, 10_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 400)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 100)
    gpu, cpu = (MemoryStore(replace(SHAPE, device=torch.device(device))) for device in ("cuda", "cpu"))

    assert [open_buffers(gpu, gpu.shape, None, default).limit_bytes for default in (1000, 150)] == [200, 150]
    assert open_buffers(gpu, gpu.shape, 700, 1000).limit_bytes == 700
    assert open_buffers(cpu, cpu.shape, None, 1000).limit_bytes == 1000
