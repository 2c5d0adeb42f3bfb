"""The router: the same schema meets the same replica, load is bounded, and few schemas move."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcache.scale import Replica, by_hash, route
from promptcache.scale.routing import SLACK, is_crowded

NAMES = st.lists(st.text(max_size=6), min_size=1, max_size=12, unique=True)
REPLICAS = NAMES.flatmap(
    lambda names: st.tuples(*(st.builds(Replica, name=st.just(name), load=st.integers(0, 40), is_up=...) for name in names))
)  # fmt: skip
SCHEMAS = [f"schema-{number}" for number in range(3000)]


@given(st.text(), REPLICAS, st.randoms(use_true_random=False))
def test_all_replicas_are_tried_in_an_order_of_schema_and_loads_alone(
    schema: str, replicas: tuple[Replica, ...], draw: random.Random
) -> None:
    """Each replica is in the order once, and the order does not depend on that in which replicas are given."""
    order = route(schema, replicas)

    assert sorted(order, key=lambda each: each.name) == sorted(replicas, key=lambda each: each.name)
    assert route(schema, draw.sample(replicas, len(replicas))) == order


@given(st.text(), REPLICAS)
def test_replicas_that_are_down_come_last(schema: str, replicas: tuple[Replica, ...]) -> None:
    """A replica that is down is never before one that is up."""
    states = [each.is_up for each in route(schema, replicas)]

    assert states == sorted(states, reverse=True)


@given(st.text(), NAMES, st.integers(0, 100))
def test_equal_loads_leave_the_order_to_the_hash(schema: str, names: list[str], load: int) -> None:
    """At balanced load the same schema meets the same replica."""
    order = route(schema, [Replica(name=name, load=load) for name in names])

    assert tuple(each.name for each in order) == by_hash(schema, names)


@given(st.text(), st.tuples(st.integers(0, 40), st.integers(0, 40)))
def test_the_less_loaded_of_two_is_preferred_from_five_requests_on(schema: str, loads: tuple[int, int]) -> None:
    """The second replica by hash is first if the first one has more than 4 requests more."""
    first, second = by_hash(schema, ["a", "b"])

    order = route(schema, [Replica(name=first, load=loads[0]), Replica(name=second, load=loads[1])])

    assert order[0].name == (second if loads[0] - loads[1] > SLACK else first)


@given(st.text(), REPLICAS)
def test_crowded_replicas_come_after_the_others(schema: str, replicas: tuple[Replica, ...]) -> None:
    """No replica that is crowded is before one that is up and is not."""
    up = [each for each in route(schema, replicas) if each.is_up]
    mean = sum(each.load for each in up) / max(1, len(up))
    crowded = [is_crowded(each.load, mean) for each in up]

    assert crowded == sorted(crowded)


@pytest.mark.parametrize("num", [2, 5, 10, 40])
def test_a_new_replica_moves_its_share_of_schemas_and_no_others(num: int) -> None:
    """With one more replica about 1/N of the schemas move, all of them to it; without it they are where they were."""
    names = [f"replica-{number}" for number in range(num)]
    before = {schema: by_hash(schema, names)[0] for schema in SCHEMAS}
    after = {schema: by_hash(schema, [*names, "new"])[0] for schema in SCHEMAS}
    moved = [schema for schema in SCHEMAS if before[schema] != after[schema]]

    assert {after[schema] for schema in moved} == {"new"}
    assert len(moved) == pytest.approx(len(SCHEMAS) / (num + 1), rel=0.25)


def _shares(num: int, *, busy: float, num_schemas: int, seed: int) -> tuple[list[float], float]:
    """Simulate requests that arrive at random and take a random time.

    Returns:
        The requests of each replica over the mean of all; and the fraction of requests that met the replica that most
        requests of their schema met.
    """
    draw = random.Random(seed)
    weights = list(accumulate(rank**-1.1 for rank in range(1, num_schemas + 1)))
    loads = {f"replica-{number}": 0 for number in range(num)}
    asked: Counter[str] = Counter()
    met: dict[str, Counter[str]] = {}
    ends: list[tuple[float, str]] = []
    now = 0.0
    for _ in range(12_000):
        now += draw.expovariate(busy * num)  # a request takes 1 s on average, so this many run
        while ends and ends[0][0] <= now:
            loads[heapq.heappop(ends)[1]] -= 1
        schema = draw.choices(SCHEMAS[:num_schemas], cum_weights=weights)[0]
        name = route(schema, [Replica(name=each, load=load) for each, load in loads.items()])[0].name
        loads[name] += 1
        heapq.heappush(ends, (now + draw.uniform(0.5, 1.5), name))
        asked[name] += 1
        met.setdefault(schema, Counter())[name] += 1
    same = sum(max(each.values()) for each in met.values()) / sum(asked.values())
    return [asked[name] * num / sum(asked.values()) for name in loads], same


@pytest.mark.parametrize(
    ("num", "num_schemas", "busy"), [(2, 20, 8), (4, 40, 8), (10, 100, 8), (10, 400, 24), (30, 300, 16)]
)
def test_no_replica_gets_much_more_than_its_share(num: int, num_schemas: int, busy: float) -> None:
    """Under a Zipf skew of 1.1 no replica gets more than 1.5 times its share of the requests."""
    shares, _ = _shares(num, busy=busy, num_schemas=num_schemas, seed=num)

    assert max(shares) <= 1.5


@pytest.mark.parametrize("num", [2, 4, 10])
def test_a_schema_stays_at_its_replica_while_loads_are_low(num: int) -> None:
    """With one running request per replica, at least 95 % of the requests meet the usual replica of their schema."""
    _, same = _shares(num, busy=1, num_schemas=10 * num, seed=num)

    assert same >= 0.95
