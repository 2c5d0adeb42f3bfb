"""The memory store agrees with a dict, whatever is done to it, and never gives out memory that somebody holds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from promptcache.diagnostics import StoreError
from promptcache.kv import KVShape, MemoryStore, RunKV, Store

SHAPE = KVShape(num_layers=2, num_kv_heads=1, head_dim=2, dtype=torch.float32, device=torch.device("cpu"))
KEYS = st.sampled_from("abcdef")
SIZES = {"a": 1, "b": 2, "c": 3, "d": 1, "e": 5, "f": 4}


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

    @rule(keys=st.lists(KEYS, unique=True))
    def reserve(self, keys: list[str]) -> None:
        """Announce keys."""
        self.store.reserve([(key, SIZES[key]) for key in keys])

    @rule(key=KEYS)
    def put(self, key: str) -> None:
        """Put new content; what is there already stays."""
        self.counter += 1
        self.store.put(key, *kv(SIZES[key], self.counter))
        self.expected.setdefault(key, self.counter)

    @rule(key=KEYS)
    def hold(self, key: str) -> None:
        """Get and keep, as a live request does."""
        run = self.store.get(key)
        assert (run is None) == (key not in self.expected)
        if run is not None:
            self.held.append((run, self.expected[key]))

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        """Forget a key."""
        assert self.store.delete(key) == (self.expected.pop(key, None) is not None)

    @rule()
    def finish_requests(self) -> None:
        """Let go of everything held."""
        self.held.clear()

    @invariant()
    def agrees(self) -> None:
        """Keys, bytes and contents are the dict's; what is held is unchanged."""
        assert set(self.store.keys()) == set(self.expected)
        assert self.store.nbytes() == sum(SIZES[key] for key in self.expected) * SHAPE.token_bytes
        for key, value in self.expected.items():
            run = self.store.get(key)
            assert run is not None
            assert run.num_tokens == SIZES[key]
            assert (run.keys == value).all()
            assert (run.values == -value).all()
        for run, value in self.held:
            assert (run.keys == value).all()


TestAgreement = Agreement.TestCase


def test_reserved_keys_lie_side_by_side() -> None:
    """Announced keys are neighbours in the announced order, in whatever order they arrive."""
    store = MemoryStore(SHAPE)
    store.reserve([("a", 1), ("b", 2), ("c", 3)])

    runs = {key: store.put(key, *kv(SIZES[key], 1.0)) for key in "cab"}

    assert len({id(run.slab) for run in runs.values()}) == 1
    assert (runs["a"].stop, runs["b"].stop) == (runs["b"].start, runs["c"].start)


def test_memory_comes_with_the_first_encoding() -> None:
    """Announcing costs no memory; blocks end where they are full."""
    store = MemoryStore(SHAPE, block_bytes=4 * SHAPE.token_bytes)
    store.reserve([("a", 1), ("b", 2), ("c", 3)])

    runs = [store.put(key, *kv(SIZES[key], 1.0)) for key in "abc"]

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
        store.put("a", torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype))

    assert list(store.keys()) == []


def test_the_memory_store_is_a_store() -> None:
    """It has every method of the protocol."""
    assert isinstance(MemoryStore(SHAPE), Store)
