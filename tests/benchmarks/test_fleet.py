"""The simulation of replicas keeps the laws of queues, and agrees with the router and with a closed form."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fleet import (
    POLICIES,
    EngineCosts,
    FleetTotals,
    HashOrders,
    ModuleMemory,
    ReplicaLimits,
    Traffic,
    busiest_rate,
    percentile,
    router,
    simulate,
)
from promptcache.kv import MemoryStore, cost_at
from promptcache.scale import Replica, route
from tests.kv.stored import recipe, shape

COSTS = EngineCosts(
    request_s=0.004,
    step_s=0.03,
    row_s=0.001,
    read_token_s=2e-6,
    prefill_token_s=0.0005,
    encode_token_s=0.003,
    load_s=0.001,
    load_bytes_per_s=1e9,
    token_bytes=12_288,
)
TRAFFIC = Traffic(
    num_requests=600,
    rate=6.0,
    num_schemas=40,
    num_modules=6,
    num_used=3,
    module_tokens=256,
    new_tokens=40,
    answer_tokens=20,
    skew=1.1,
    seed=0,
)
MODULE_BYTES = 256 * 12_288
LIMITS = ReplicaLimits(memory_bytes=60 * MODULE_BYTES)
RUNS = [(policy, num, busy) for policy in POLICIES for num in (1, 4) for busy in (0.3, 0.9, 3.0)]


def _run(policy: str, num: int, traffic: Traffic, limits: ReplicaLimits = LIMITS) -> FleetTotals:
    return simulate(COSTS, traffic, limits, policy, HashOrders(num))


def _busy(num: int, busy: float) -> Traffic:
    return replace(TRAFFIC, rate=busy * num * busiest_rate(COSTS, TRAFFIC, LIMITS))


@pytest.mark.parametrize(("policy", "num", "busy"), RUNS)
def test_all_work_is_done_once(policy: str, num: int, busy: float) -> None:
    """The time in which replicas compute is that of the forward passes and requests, and no token is lost."""
    totals = _run(policy, num, _busy(num, busy))
    answered = [each for each in totals.requests if each.ended_at is not None]

    assert totals.num_prefilled == len(answered) * TRAFFIC.new_tokens
    assert totals.num_decoded == len(answered) * (TRAFFIC.answer_tokens - 1)
    assert totals.busy_s == pytest.approx(
        len(answered) * COSTS.request_s
        + totals.num_steps * COSTS.step_s
        + totals.num_decoded * COSTS.row_s
        + totals.num_read * COSTS.read_token_s
        + totals.num_prefilled * COSTS.prefill_token_s
    )


@pytest.mark.parametrize(("policy", "num", "busy"), RUNS)
def test_the_number_in_the_system_follows_from_their_times(policy: str, num: int, busy: float) -> None:
    """Little's law: the mean number of requests is their rate times the mean time that they stay."""
    totals = _run(policy, num, _busy(num, busy))
    stays = [each.ended_at - each.arrived_at for each in totals.requests if each.ended_at is not None]

    assert totals.load_area == pytest.approx(sum(stays))


def test_no_replica_is_idle_while_a_request_waits() -> None:
    """Under more than it can answer, a replica computes or waits for modules from the first arrival to the last answer."""
    totals = _run("hashing", 1, _busy(1, 3.0))
    ends = [each.ended_at for each in totals.requests if each.ended_at is not None]

    assert totals.busy_s + totals.fetch_wait_s == pytest.approx(max(ends) - totals.requests[0].arrived_at)


@pytest.mark.parametrize("new_tokens", [1, 40, 2048, 5000])
@pytest.mark.parametrize("bytes_per_s", [0.0, 1e9])
def test_one_request_at_a_time_takes_what_its_parts_take(new_tokens: int, bytes_per_s: float) -> None:
    """TTFT and the time of an answer are sums of the costs, if no other request is there."""
    costs = replace(COSTS, load_bytes_per_s=bytes_per_s)
    traffic = replace(TRAFFIC, rate=1e-4, num_requests=30, new_tokens=new_tokens)
    totals = simulate(costs, traffic, LIMITS, "router", HashOrders(1))

    assert {each.num_misses for each in totals.requests} > {0, 3}
    for each in totals.requests:
        assert each.first_token_at is not None
        assert each.ended_at is not None
        ttft = costs.request_s + each.num_misses * costs.miss_s(256)
        step_s = costs.step_s + 3 * 256 * costs.read_token_s
        ttft += math.ceil(new_tokens / 2048) * step_s + new_tokens * costs.prefill_token_s
        assert each.first_token_at - each.arrived_at == pytest.approx(ttft)
        assert each.ended_at - each.first_token_at == pytest.approx(19 * (step_s + costs.row_s))


def test_rows_go_on_while_modules_are_fetched() -> None:
    """If only steps and misses take time, each token of an answer takes one step, whatever other requests miss."""
    costs = replace(COSTS, request_s=0, row_s=0, read_token_s=0, prefill_token_s=0)
    totals = simulate(costs, _busy(1, 0.9), replace(LIMITS, memory_bytes=0), "hashing", HashOrders(1))

    assert totals.fetch_wait_s < 0.9 * sum(each.num_misses for each in totals.requests) * costs.miss_s(256)
    for each in totals.requests:
        assert each.first_token_at is not None
        assert each.ended_at is not None
        assert each.ended_at - each.first_token_at == pytest.approx(19 * costs.step_s)


def test_a_step_reads_modules_of_several_rows_once() -> None:
    """Where all requests use the same modules, each step reads these, however many rows it has."""
    traffic = replace(TRAFFIC, num_schemas=1, num_modules=3)
    totals = _run("hashing", 1, replace(traffic, rate=3 * busiest_rate(COSTS, traffic, LIMITS)))

    assert totals.num_decoded > 10 * totals.num_steps
    assert totals.num_read == totals.num_steps * 3 * 256


def test_more_replicas_never_lower_the_hit_rate_of_hashing() -> None:
    """With hashing each replica has fewer schemas, so the same requests find more modules in memory."""
    limits = replace(LIMITS, memory_bytes=30 * MODULE_BYTES, max_waiting=10**6)
    traffic = replace(TRAFFIC, num_requests=6000, rate=10.0)

    rates = [_run("hashing", num, traffic, limits).hit_rate for num in (1, 2, 4, 8, 16)]

    assert rates == sorted(rates)
    assert rates[-1] > rates[0] + 0.1


def test_all_hit_if_memory_has_room_for_all() -> None:
    """Without eviction a replica misses each module once; without memory it always does."""
    ample = _run("hashing", 1, TRAFFIC, replace(LIMITS, memory_bytes=math.inf))
    none = _run("hashing", 1, replace(TRAFFIC, rate=1e-4), replace(LIMITS, memory_bytes=0))
    used = {(each.schema, module) for each in ample.requests for module in each.modules}

    assert sum(each.num_misses for each in ample.requests) == len(used)
    assert none.hit_rate == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_a_seed_gives_the_same_run(policy: str) -> None:
    """Two runs of one seed are equal in every request; another seed gives another one."""
    runs = [_run(policy, 4, replace(TRAFFIC, seed=seed)) for seed in (1, 1, 2)]
    first, again, other = ([(each.replica, each.ended_at) for each in run.requests] for run in runs)

    assert first == again != other


@given(st.lists(st.integers(0, 30), min_size=1, max_size=9), st.integers(0, 50))
def test_the_simulated_router_is_the_router(loads: list[int], schema: int) -> None:
    """The simulation sends a request where `route` says first."""
    replicas = [Replica(name=str(number), load=load) for number, load in enumerate(loads)]

    assert str(router(HashOrders(len(loads)))(schema, loads)) == route(str(schema), replicas)[0].name


def test_the_router_goes_past_the_replicas_that_it_keeps() -> None:
    """If the first 64 replicas of a schema are crowded, the request goes to another one."""
    orders = HashOrders(200)
    loads = [0] * 200
    order = orders.order(7)
    for number in islice(order, 64):
        loads[number] = 50

    assert router(orders)(7, loads) == next(order)


def test_loads_are_balanced_by_the_least_loaded_and_the_router() -> None:
    """Under skew, hashing gives one replica much more than its share, and the others do not."""
    traffic = replace(_busy(10, 0.6), num_requests=4000)

    shares = {policy: _run(policy, 10, traffic).largest_share(10) for policy in POLICIES}

    assert shares["least loaded"] < 1.1
    assert shares["router"] < 1.5 < 2 < shares["hashing"]


def test_the_router_keeps_schemas_at_their_replicas_while_it_is_quiet() -> None:
    """Requests that come one at a time go where hashing sends them: loads fall when requests end."""
    traffic = replace(TRAFFIC, rate=1e-4)

    routed, hashed = ([each.replica for each in _run(name, 4, traffic).requests] for name in ("router", "hashing"))

    assert routed == hashed


@given(st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=4, unique=True), max_size=40), st.integers(1, 12))
def test_simulated_memory_holds_what_a_store_holds(requests: list[list[int]], room: int) -> None:
    """One request after the other finds the same modules in `MemoryStore`, whatever the room and the costs."""
    kv = shape()
    memory, store = ModuleMemory(room * 3), MemoryStore(kv, budget_bytes=room * 3 * kv.token_bytes)
    tensor = torch.zeros((kv.num_layers, kv.num_kv_heads, 3, kv.head_dim))
    for numbers in requests:
        recipes = [recipe(f"module {number}", first=500 * number) for number in numbers]  # some cost more than others
        keys = [each.key for each in recipes]
        held = {key: found.handle for key, found in store.get_many(keys).items()}
        missing = [each for each in recipes if held[each.key] is None]

        assert memory.use({each.key: cost_at(3, each.last_position) for each in recipes}, 3) == len(missing)
        held |= {each.key: store.put(each, tensor, tensor) for each in missing}
        memory.release(keys)
        del held


def test_percentiles_are_values() -> None:
    """The median of sorted values is in their middle; there is none of no values."""
    assert [percentile(range(100), share) for share in (0.0, 0.5, 0.99, 1.0)] == [0, 50, 99, 99]
    assert math.isnan(percentile([], 0.5))
