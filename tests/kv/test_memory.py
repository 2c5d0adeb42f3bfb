"""The memory store agrees with a dict, whatever is done to it, and never gives out memory that somebody holds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from promptcache.diagnostics import StoreError
from promptcache.kv import KVShape, MemoryStore, Recipe, RunKV, Store

SHAPE = KVShape(num_layers=2, num_kv_heads=1, head_dim=2, dtype=torch.float32, device=torch.device("cpu"))
SIZES = {"a": 1, "b": 2, "c": 3, "d": 1, "e": 5, "f": 4}
RECIPES = {
    name: Recipe(fingerprint=name, token_ids=(0,) * size, position_ids=tuple(range(size)), context="")
    for name, size in SIZES.items()
}
NAMES = st.sampled_from(sorted(SIZES))


def kv(num_tokens: int, value: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of one constant each."""
    size = (SHAPE.num_layers, SHAPE.num_kv_heads, num_tokens, SHAPE.head_dim)
    return torch.full(size, value), torch.full(size, -value)


class Agreement(RuleBasedStateMachine):
    """A store, a dict, and requests that hold on to what they got."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore(SHAPE, block_bytes=6 * SHAPE.token_bytes)
        self.expected: dict[str, float] = {}
        self.held: list[tuple[RunKV, float]] = []
        self.counter = 0.0

    @rule(names=st.lists(NAMES, unique=True))
    def reserve(self, names: list[str]) -> None:
        """Announce keys."""
        self.store.reserve([(RECIPES[name].key, SIZES[name]) for name in names])

    @rule(name=NAMES)
    def put(self, name: str) -> None:
        """Put new content; what is there already stays."""
        self.counter += 1
        self.store.put(RECIPES[name], *kv(SIZES[name], self.counter))
        self.expected.setdefault(name, self.counter)

    @rule(name=NAMES)
    def hold(self, name: str) -> None:
        """Get and keep, as a live request does."""
        run = self.store.get(RECIPES[name].key).run
        assert (run is None) == (name not in self.expected)
        if run is not None:
            self.held.append((run, self.expected[name]))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        """Forget a key."""
        assert self.store.delete(RECIPES[name].key) == (self.expected.pop(name, None) is not None)

    @rule()
    def finish_requests(self) -> None:
        """Let go of everything held."""
        self.held.clear()

    @invariant()
    def agrees(self) -> None:
        """Keys, bytes and contents are the dict's; what is held is unchanged."""
        assert set(self.store.keys()) == {RECIPES[name].key for name in self.expected}
        assert self.store.nbytes() == sum(SIZES[name] for name in self.expected) * SHAPE.token_bytes
        for name, value in self.expected.items():
            run = self.store.get(RECIPES[name].key).run
            assert run is not None
            assert run.num_tokens == SIZES[name]
            assert (run.keys == value).all()
            assert (run.values == -value).all()
        for run, value in self.held:
            assert (run.keys == value).all()


TestAgreement = Agreement.TestCase


def test_reserved_keys_lie_side_by_side() -> None:
    """Announced keys are neighbours in the announced order, in whatever order they arrive."""
    store = MemoryStore(SHAPE)
    store.reserve([(RECIPES[name].key, SIZES[name]) for name in "abc"])

    runs = {name: store.put(RECIPES[name], *kv(SIZES[name], 1.0)) for name in "cab"}

    assert len({id(run.slab) for run in runs.values()}) == 1
    assert (runs["a"].stop, runs["b"].stop) == (runs["b"].start, runs["c"].start)


def test_memory_comes_with_the_first_encoding() -> None:
    """Announcing costs no memory; blocks end where they are full."""
    store = MemoryStore(SHAPE, block_bytes=4 * SHAPE.token_bytes)
    store.reserve([(RECIPES[name].key, SIZES[name]) for name in "abc"])

    runs = [store.put(RECIPES[name], *kv(SIZES[name], 1.0)) for name in "abc"]

    assert [run.slab.capacity for run in runs] == [3, 3, 3]
    assert runs[0].slab is runs[1].slab
    assert runs[2].slab is not runs[1].slab


@pytest.mark.parametrize("wrong", ["layers", "heads", "width", "dtype"])
def test_kv_of_another_shape_is_refused(wrong: str) -> None:
    """A store holds KV of one shape and says so; nothing is kept of what does not fit."""
    size = [2, 1, 3, 2]
    if wrong != "dtype":
        size[{"layers": 0, "heads": 1, "width": 3}[wrong]] += 1
    dtype = torch.float64 if wrong == "dtype" else torch.float32
    store = MemoryStore(SHAPE)

    with pytest.raises(StoreError, match="this store holds"):
        store.put(RECIPES["c"], torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype))

    assert list(store.keys()) == []


def test_the_memory_store_is_a_store() -> None:
    """It has every method of the protocol."""
    assert isinstance(MemoryStore(SHAPE), Store)
