"""The simulation of replicas keeps the laws of queues, and agrees with the router and with a closed form."""

from __future__ import annotations

import math
from dataclasses import replace

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
RUNS = [(policy, num, busy) for policy in POLICIES for num, busy in ((1, 3.0), (4, 0.9))]


def _run(policy: str, num: int, traffic: Traffic, limits: ReplicaLimits = LIMITS) -> FleetTotals:
    return simulate(COSTS, traffic, limits, policy, HashOrders(num))


def _busy(num: int, busy: float) -> Traffic:
    return replace(TRAFFIC, rate=busy * num * busiest_rate(COSTS, TRAFFIC, LIMITS))


@pytest.mark.parametrize(("policy", "num", "busy"), RUNS)
def test_all_work_is_done_once(policy: str, num: int, busy: float) -> None:
    """The time in which replicas compute is that of the forward passes and requests, and no token is lost.

    Little's law holds: the mean number of requests in the system is their rate times the mean time that they stay.
    """
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
    assert totals.load_area == pytest.approx(sum(each.ended_at - each.arrived_at for each in answered))


@pytest.mark.parametrize("new_tokens", [40, 5000])
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


@given(st.lists(st.integers(0, 30), min_size=1, max_size=9), st.integers(0, 50))
def test_the_simulated_router_is_the_router(loads: list[int], schema: int) -> None:
    """The simulation sends a request where `route` says first."""
    replicas = [Replica(name=str(number), load=load) for number, load in enumerate(loads)]

    assert str(router(HashOrders(len(loads)))(schema, loads)) == route(str(schema), replicas)[0].name


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
