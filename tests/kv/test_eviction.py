"""Eviction agrees with a model that sorts everything every time, and does what it is for."""

from __future__ import annotations

import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from promptcache.kv.eviction import GreedyDual, encoding_cost
from tests.kv.stored import recipe

KEYS = st.sampled_from([f"k{number}" for number in range(8)])


class Model(RuleBasedStateMachine):
    """`GreedyDual` beside the definition: a list of entries, sorted anew whenever victims are sought."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = GreedyDual()
        self.entries: dict[str, dict[str, float]] = {}
        self.pinned: set[str] = set()
        self.level, self.uses = 0.0, 0

    def use(self, key: str) -> None:
        """Set an entry's priority by the formula."""
        self.uses += 1
        entry = self.entries[key]
        entry["frequency"] += 1
        entry["priority"] = self.level + entry["frequency"] * entry["cost"] / entry["nbytes"]
        entry["used"] = self.uses

    @rule(key=KEYS, nbytes=st.integers(1, 5), cost=st.integers(1, 5))
    def add(self, key: str, nbytes: int, cost: int) -> None:
        """Take a key in, or use it."""
        if key in self.entries:
            return
        self.policy.add(key, nbytes, cost)
        self.entries[key] = {"nbytes": nbytes, "cost": cost, "frequency": 0}
        self.use(key)

    @rule(key=KEYS)
    def touch(self, key: str) -> None:
        """Use a key that may not be there."""
        self.policy.touch(key)
        if key in self.entries:
            self.use(key)

    @rule(key=KEYS)
    def remove(self, key: str) -> None:
        """Delete a key that may not be there."""
        assert self.policy.remove(key) == (self.entries.pop(key, None) is not None)

    @rule(keys=st.sets(KEYS, max_size=3))
    def pin(self, keys: set[str]) -> None:
        """Pin keys that may not be there."""
        self.policy.pin(keys)
        self.pinned |= keys

    @rule(keys=st.sets(KEYS))
    def unpin(self, keys: set[str]) -> None:
        """Take pins back that may never have been set."""
        self.policy.unpin(keys)
        self.pinned -= keys

    @rule(needed=st.integers(0, 20), in_use=st.sets(KEYS, max_size=3), evict=st.booleans())
    def seek(self, needed: int, in_use: set[str], evict: bool) -> None:
        """Seek victims; sometimes evict them."""
        order = sorted(self.entries, key=lambda key: (self.entries[key]["priority"], self.entries[key]["used"]))
        left, chosen = float(needed), []
        for key in order:
            if left > 0 and key not in self.pinned | in_use:
                chosen.append(key)
                left -= self.entries[key]["nbytes"]
        found = self.policy.victims(needed, in_use.__contains__)
        assert found == (tuple(chosen) if left <= 0 else None)
        if found is not None and evict:
            self.policy.evict(found)
            for key in found:
                self.level = max(self.level, self.entries.pop(key)["priority"])

    @invariant()
    def agrees(self) -> None:
        """Keys and bytes are the model's."""
        assert len(self.policy) == len(self.entries)
        assert all(key in self.policy for key in self.entries)
        assert self.policy.nbytes == sum(entry["nbytes"] for entry in self.entries.values())
        assert self.policy.pinned == self.pinned


TestModel = Model.TestCase


def nobody(key: str) -> bool:
    """No key is in use."""
    return False


@pytest.mark.parametrize(
    ("other", "why"), [((1, 9.0), "costs more"), ((3, 4.0), "gives fewer bytes"), ((2, 4.0), "was used later")]
)
def test_the_cheapest_bytes_go_first(other: tuple[int, float], why: str) -> None:
    """What is cheap to make again, large, or not used for long goes before what is not."""
    policy = GreedyDual()
    policy.add("first", 2, 4.0)
    policy.add("other", *other)

    expected = "other" if why == "gives fewer bytes" else "first"

    assert policy.victims(1, nobody) == (expected,)


def test_old_fame_fades() -> None:
    """A key that was used often and then never again goes at last, however many keys were new in between."""
    policy = GreedyDual()
    policy.add("famous", 1, 1.0)
    for _ in range(50):
        policy.touch("famous")

    gone: list[str] = []
    for number in range(400):
        policy.add(f"new {number}", 1, 1.0)
        if len(policy) > 4:
            victims = policy.victims(1, nobody)
            assert victims is not None
            policy.evict(victims)
            gone.extend(victims)

    assert "famous" in gone
    assert gone.index("famous") > 50


def test_uses_leave_nothing_behind() -> None:
    """Bookkeeping stays as small as what is kept, however much was used, added and removed."""
    policy, chance = GreedyDual(), random.Random(0)
    for number in range(5_000):
        policy.add(str(number), 1, 1.0)
        policy.touch(str(chance.randrange(number + 1)))
        if number >= 10:
            policy.remove(str(number - 10))

    assert len(policy) == 10
    assert len(policy._queue) < 100


def test_later_tokens_cost_more() -> None:
    """An encoding costs more to make again the more tokens it has and the more lies before them."""

    def cost(num_tokens: int, start: int) -> float:
        return encoding_cost(recipe("", num_tokens, first=start))

    assert cost(10, 0) < cost(20, 0) < cost(20, 5_000)
