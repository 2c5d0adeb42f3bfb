"""The memory store agrees with a dict, stays within its budget, and never changes KV that a request uses."""

import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import Mock

import psutil
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from promptcache.kv import KV, KVMemory, KVShape, Store, StoreConfig, memory, open_store
from promptcache.kv.eviction import cost_at
from promptcache.kv.types import room_for
from tests.conftest import law_examples
from tests.kv.stored import recipe

SHAPE = KVShape(num_layers=2, num_kv_heads=1, head_dim=2, dtype=torch.float32, device=torch.device("cpu"))


class GPUShape(KVShape):
    @property
    def is_on_gpu(self) -> bool:
        return True


GPU_SHAPE = GPUShape(num_layers=2, num_kv_heads=1, head_dim=2, dtype=torch.float32, device=torch.device("cpu"))
SIZES = {"a": 1, "b": 2, "c": 3, "d": 1, "e": 5, "f": 4}
RECIPES = {name: recipe(name, size) for name, size in SIZES.items()}
NAMES = st.sampled_from(sorted(SIZES))


def kv(num_tokens: int, value: float) -> tuple[torch.Tensor, torch.Tensor]:
    size = (SHAPE.num_layers, SHAPE.num_kv_heads, num_tokens, SHAPE.head_dim)
    return torch.full(size, value), torch.full(size, -value)


def store_of(num_tokens: int, shape: KVShape = SHAPE) -> KVMemory:
    return KVMemory(shape, budget_bytes=num_tokens * SHAPE.token_bytes)


def put(store: KVMemory, name: str, value: float = 1.0) -> KV | None:
    keys, values = kv(SIZES[name], value)
    run = store.offer(RECIPES[name], keys, values, cost_at(RECIPES[name].num_tokens, RECIPES[name].last_position))
    keys.fill_(torch.nan)  # the caller may change its tensors afterwards
    values.fill_(torch.nan)
    return run


def keep(store: KVMemory, key: object, num_tokens: int, cost: float, uses: int | None = None) -> bool:
    handle = store.allocate(num_tokens, cost, uses)
    return handle is not None and store.keep(key, handle, cost, uses=uses) is handle


class Agreement(RuleBasedStateMachine):
    """A store, a dict, and requests that hold handles."""

    budget_tokens = 100
    shape: KVShape = SHAPE

    def __init__(self) -> None:
        super().__init__()
        self.store = store_of(self.budget_tokens, self.shape)
        self.expected: dict[object, float] = {}  # the content of each key that is kept
        self.held: list[tuple[KV, float]] = []
        self.evicted: deque[object] = deque()
        self.counter = 0.0

    def added(self, key: object, run: KV | None, size: int, *, hold: bool) -> None:
        """Compare with the dict after content was given to the store. New content may evict others."""
        nbytes = size * SHAPE.token_bytes
        if run is not None and hold:
            self.held.append((run, float(run.keys.flatten()[0])))
        for other in tuple(self.expected):
            if other != key and self.store.find(other) is None:
                del self.expected[other]
        if key not in self.expected and self.store.find(key) is not None:
            self.expected[key] = self.counter
        assert key in self.expected or nbytes > self.store.budget_bytes or not isinstance(key, str)

    @rule(name=NAMES, hold=st.booleans())
    def put(self, name: str, hold: bool) -> None:
        """Put new content; content that is kept stays. It is kept unless it is larger than the budget."""
        self.counter += 1
        key, known = RECIPES[name].key, self.expected.get(RECIPES[name].key)
        run = put(self.store, name, self.counter)
        assert run is None or (run.keys == (known or self.counter)).all()
        self.added(key, run, SIZES[name], hold=hold)

    @rule(number=st.integers(0, 5), size=st.integers(1, 6), uses=st.none() | st.integers(1, 3), hold=st.booleans())
    def keep(self, number: int, size: int, uses: int | None, hold: bool) -> None:
        """Keep an entry of an owner. With `uses`, no entry makes room that is worth more."""
        if number in self.expected:
            return
        self.counter += 1
        handle = self.store.allocate(size, 1.0, uses)
        if handle is not None:
            handle.keys.fill_(self.counter)
            handle.values.fill_(-self.counter)
            assert self.store.keep(number, handle, 1.0, uses=uses, evicted=self.evicted) is handle
        assert handle is not None or uses is not None or size > self.budget_tokens
        self.added(number, handle, size, hold=hold)

    @rule(name=NAMES)
    def hold(self, name: str) -> None:
        run = self.store.find(RECIPES[name].key)
        assert (run is None) == (RECIPES[name].key not in self.expected)
        if run is not None:
            self.held.append((run, self.expected[RECIPES[name].key]))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.store.drop(RECIPES[name].key)
        self.expected.pop(RECIPES[name].key, None)

    @rule(number=st.integers(0, 5))
    def drop(self, number: int) -> None:
        self.store.drop(number)
        self.expected.pop(number, None)

    @rule()
    def clear(self) -> None:
        self.store.clear()
        self.expected.clear()

    @rule(number=st.integers(0, 100))
    def finish_request(self, number: int) -> None:
        if self.held:
            del self.held[number % len(self.held)]

    @invariant()
    def agrees(self) -> None:
        assert {each.key for each in self.store.recipes()} == {key for key in self.expected if isinstance(key, str)}
        for key, value in self.expected.items():
            run = self.store.find(key)
            assert run is not None
            assert (run.keys == value).all()
            assert (run.values == -value).all()
        for run, value in self.held:
            assert (run.keys == value).all()

    @invariant()
    def reports_evictions(self) -> None:
        """An owner learns once which of its entries are gone."""
        gone = [self.evicted.popleft() for _ in tuple(self.evicted)]
        assert len(set(gone)) == len(gone)
        assert all(self.store.find(key) is None for key in gone)

    @invariant()
    def stays_within_its_budget(self) -> None:
        kept = [run for key in self.expected if (run := self.store.find(key)) is not None]
        assert self.store.nbytes() == sum(run.nbytes for run in kept) <= self.store.budget_bytes


@pytest.mark.law
@pytest.mark.parametrize(("budget_tokens", "shape"), [(100, SHAPE), (8, SHAPE), (4, SHAPE), (8, GPU_SHAPE)])
def test_the_store_agrees_with_a_dict(budget_tokens: int, shape: KVShape) -> None:
    """Whether the budget is enough for all encodings, for half or for one, and on a GPU, where memory has few sizes."""
    machine = type("Machine", (Agreement,), {"budget_tokens": budget_tokens, "shape": shape})
    run_state_machine_as_test(machine, settings=settings(max_examples=law_examples(0.4)))


def test_kv_can_be_used_outside_of_inference_mode() -> None:
    """KV that was put in inference mode can take part in a computation with gradients."""
    with torch.inference_mode():
        run = put(KVMemory(SHAPE), "c")

    assert run is not None
    weight = torch.ones(2, requires_grad=True)
    (run.keys * weight).sum().backward()

    assert weight.grad is not None


def test_memory_is_free_when_nothing_refers_to_it() -> None:
    """Evicted KV stays while a request holds it, and no longer."""
    store = store_of(5)
    held = put(store, "e")
    assert held is not None
    kept = weakref.ref(held)

    put(store, "c", 2.0)
    assert (held.keys == 1.0).all()

    del held
    assert kept() is None


def test_an_entry_with_uses_takes_no_room_of_others_that_are_worth_more() -> None:
    """A joined copy evicts no encoding, until its combination was used as often as that is worth."""
    store = store_of(5)
    put(store, "e")  # 5 tokens, about 5 token equivalents

    assert not keep(store, "copy", 5, 1.0, uses=2)
    assert store.find(RECIPES["e"].key) is not None  # its second use
    assert keep(store, "copy", 5, 1.0, uses=11)
    assert store.recipes() == ()


def test_a_failed_allocation_leaves_the_store_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(SIZES["c"])
    with monkeypatch.context() as patch:
        patch.setattr(KV, "empty", Mock(side_effect=MemoryError("no memory")))
        with pytest.raises(MemoryError, match="no memory"):
            put(store, "c")

    assert store.nbytes() == 0
    put(store, "c")
    assert store.recipes() == (RECIPES["c"],)


def test_few_sizes_are_allocated() -> None:
    """There are eight sizes between a power of two and the next one, and each size is its own class."""
    sizes = {room_for(GPU_SHAPE, each) for each in range(513, 1025)}

    assert sorted(sizes) == [576, 640, 704, 768, 832, 896, 960, 1024]
    assert all(room_for(GPU_SHAPE, each) == each for each in (*range(1, 17), *sizes))
    assert room_for(SHAPE, 70) == 70


class Device:
    def __init__(self, num_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self._num_tokens, self._empty = num_tokens, KV.empty
        self._taken = weakref.WeakSet[KV]()
        monkeypatch.setattr(KV, "empty", self.allocate)

    def allocate(self, shape: KVShape, num_tokens: int) -> KV:
        if sum(each.num_tokens for each in self._taken) + num_tokens > self._num_tokens:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        taken = self._empty(shape, num_tokens)
        self._taken.add(taken)
        return taken


def test_entries_make_room_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoding without memory takes that of entries that are worth least. KV in use stays."""
    Device(16, monkeypatch)
    store = KVMemory(GPU_SHAPE)
    for number in range(4):
        assert keep(store, number, 4, 1.0 + number)
    held = store.find(0)

    run = put(store, "e")

    assert store.find(RECIPES["e"].key) is run is not None
    assert [store.find(number) is not None for number in range(4)] == [False, False, False, True]
    assert held is not None
    assert held.num_tokens == 4


def test_kv_that_the_device_has_no_memory_for_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request uses it as it was computed."""
    Device(4, monkeypatch)
    store = Store(GPU_SHAPE)

    run = store.put(RECIPES["e"], *kv(SIZES["e"], 1.0))

    assert (run.keys == 1.0).all()
    assert store.memory.nbytes() == 0


def test_what_runs_out_of_memory_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the entries make room each time. When nothing is left, the error stays."""
    store = KVMemory(SHAPE)
    for number in range(8):
        assert keep(store, number, 1, 1.0)
    seen: list[int] = []

    def run(needed: int) -> Callable[[], int]:
        def forward() -> int:
            seen.append(store.nbytes() // SHAPE.token_bytes)
            if seen[-1] > needed:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return seen[-1]

        return forward

    assert store.with_room(run(2)) == 2
    assert seen == [8, 4, 2]
    with pytest.raises(torch.OutOfMemoryError):
        store.with_room(run(-1))
    assert store.nbytes() == 0


@pytest.mark.parametrize(("limit", "expected"), [("max", 500), ("1000", 250), ("1000000", 500), (None, 500)])
def test_the_default_budget_is_a_quarter_of_the_memory(
    limit: str | None, expected: int, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the machine, or of the container if that has a limit."""
    file = tmp_path / "memory.max"  # type: ignore[operator]
    if limit is not None:
        file.write_text(limit)
    monkeypatch.setattr(memory, "_LIMITS_OF_CONTAINERS", (str(file),))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: Mock(total=2000))

    assert KVMemory(SHAPE).budget_bytes == expected


def test_the_default_budget_on_a_gpu_is_a_quarter_of_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no share of what is free at the moment."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Mock(total_memory=8000))

    assert KVMemory(replace(SHAPE, device=torch.device("cuda"))).budget_bytes == 2000


def test_the_default_budget_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """When a store is opened; a budget that the caller chose is not."""
    caplog.set_level("INFO")

    budget = open_store(None, SHAPE).memory.budget_bytes
    open_store(StoreConfig(memory_bytes=100), SHAPE)

    (record,) = caplog.records
    assert f"at most {budget:,} bytes" in record.getMessage()


def test_a_priority_ends_with_that_of_the_schema() -> None:
    """The module that lost its priority is evicted first; facts that name no module change nothing."""
    kept = {}
    for facts in ({"module": "m"}, {}):
        store = Store(SHAPE, budget_bytes=(SIZES["d"] + SIZES["c"]) * SHAPE.token_bytes)
        store.note({RECIPES["d"].key: {"module": "m", "priority": "100"}})
        store.note({RECIPES["d"].key: facts})
        for name in "dca":
            store.put(RECIPES[name], *kv(SIZES[name], 1.0))
        kept[bool(facts)] = RECIPES["d"].key in set(store.keys())

    assert kept == {True: False, False: True}


def test_views_of_the_same_tokens_are_shared() -> None:
    """Calls for the same tokens share one `LayerViews`, which is freed with its last holder."""
    made = KV(keys=torch.zeros(1, 1, 8, 2), values=torch.zeros(1, 1, 8, 2))
    first, second = made.layers(0, 4), made.layers(0, 4)
    left = weakref.ref(first)

    assert first is second
    assert made.layers(0, 5) is not first
    del first, second
    assert left() is None
