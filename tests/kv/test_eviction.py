"""Eviction agrees with a model that sorts all entries every time, and keeps entries in use."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from promptcache.kv.eviction import GreedyDual, cost_at
from tests.conftest import law_examples

KEYS = st.sampled_from([f"k{number}" for number in range(8)])


class Model(RuleBasedStateMachine):
    """`GreedyDual` and its definition: entries that are sorted again for each search."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = GreedyDual[str]()
        self.entries: dict[str, dict[str, float]] = {}
        self.level, self.uses = 0.0, 0

    def use(self, key: str) -> None:
        self.uses += 1
        entry = self.entries[key]
        entry["frequency"] += 1
        entry["priority"] = self.level + entry["frequency"] * entry["cost"] / entry["nbytes"]
        entry["used"] = self.uses

    @rule(key=KEYS, nbytes=st.integers(1, 5), cost=st.integers(1, 5), frequency=st.integers(1, 3))
    def add(self, key: str, nbytes: int, cost: int, frequency: int) -> None:
        if key in self.entries:
            return
        expected = self.policy.priority(nbytes, cost, frequency)
        self.policy.add(key, nbytes, cost, frequency)
        self.entries[key] = {"nbytes": nbytes, "cost": cost, "frequency": frequency - 1}
        self.use(key)
        assert self.entries[key]["priority"] == expected

    @rule(key=KEYS)
    def touch(self, key: str) -> None:
        self.policy.touch(key)
        if key in self.entries:
            self.use(key)

    @rule(key=KEYS)
    def remove(self, key: str) -> None:
        assert self.policy.remove(key) == (self.entries.pop(key, None) is not None)

    @rule(needed=st.integers(0, 20), evict=st.booleans(), limit=st.none() | st.integers(0, 10))
    def seek(self, needed: int, evict: bool, limit: int | None) -> None:
        order = sorted(self.entries, key=lambda key: (self.entries[key]["priority"], self.entries[key]["used"]))
        left, chosen = float(needed), []
        for key in order:
            if left > 0 and (limit is None or self.entries[key]["priority"] <= limit):
                chosen.append(key)
                left -= self.entries[key]["nbytes"]
        found = self.policy.victims(needed, limit)
        assert found == (tuple(chosen) if left <= 0 else None)
        if found is not None and evict:
            self.policy.evict(found)
            for key in found:
                self.level = max(self.level, self.entries.pop(key)["priority"])

    @invariant()
    def agrees(self) -> None:
        assert len(self.policy) == len(self.entries)
        assert all(key in self.policy for key in self.entries)
        assert self.policy.nbytes == sum(entry["nbytes"] for entry in self.entries.values())


Model.TestCase.settings = settings(max_examples=law_examples(0.4))
TestModel = pytest.mark.law(Model.TestCase)


def test_bookkeeping_does_not_grow_with_uses() -> None:
    policy, chance = GreedyDual[str](), random.Random(0)
    for number in range(5_000):
        policy.add(str(number), 1, 1.0)
        policy.touch(str(chance.randrange(number + 1)))
        if number >= 10:
            policy.remove(str(number - 10))

    assert len(policy) == 10
    assert len(policy._queue) < 100


def test_later_tokens_cost_more() -> None:
    def cost(num_tokens: int, start: int) -> float:
        return cost_at(num_tokens, start + num_tokens - 1)

    assert cost(10, 0) < cost(20, 0) < cost(20, 5_000)
