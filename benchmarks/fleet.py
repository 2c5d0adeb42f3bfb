"""A simulation of many replicas: discrete events, seeded.

A replica is the scheduler of `runtime/serving` with costs instead of forward passes: requests wait, their modules are
loaded or encoded while other requests go on, prompts are prefilled in chunks, and rows are decoded together. Steps in
which nothing changes are one event.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TypeAlias

from promptcache.kv import GreedyDual, cost_at
from promptcache.scale.routing import by_hash, by_load

CHUNK_TOKENS = 2048
"""Tokens of prompts in one forward pass in which nothing is decoded, as in `runtime`."""

_WARM_UP = 0.3  # the fraction of requests before those that count
_PAUSE_S = 3600.0  # between rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCosts:
    """Costs of one replica, in seconds and bytes.

    Attributes:
        request_s: Of a request, besides forward passes and loading.
        step_s: Of a forward pass.
        row_s: Of each row that a forward pass decodes.
        read_token_s: Of each token of modules that a forward pass attends to. Modules of several rows count once.
        prefill_token_s: Of each token of a prompt that is prefilled.
        encode_token_s: Of each token of a module that is encoded.
        load_s: Of each module that is loaded from the store, besides its bytes.
        load_bytes_per_s: Loaded bytes per second; 0 if there is no store, so that missing modules are encoded.
        token_bytes: KV of one token.
    """

    request_s: float
    step_s: float
    row_s: float
    read_token_s: float
    prefill_token_s: float
    encode_token_s: float
    load_s: float
    load_bytes_per_s: float
    token_bytes: float

    def miss_s(self, num_tokens: int) -> float:
        """Return the seconds that a module takes that is not in memory."""
        if not self.load_bytes_per_s:
            return num_tokens * self.encode_token_s
        return self.load_s + num_tokens * self.token_bytes / self.load_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests that arrive at random times, for schemas and modules of different popularity.

    Attributes:
        num_modules: Modules of each schema.
        num_used: Modules of each request.
        skew: The most used schema is asked 2 ** skew times as often as the second one; modules likewise.
        rate: Requests per second, to all replicas.
        num_rounds: The requests come in as many parts. Before each one, all requests of the others have ended.
    """

    num_requests: int
    rate: float
    num_schemas: int
    num_modules: int
    num_used: int
    module_tokens: int
    new_tokens: int
    answer_tokens: int
    skew: float
    seed: int
    num_rounds: int = 1

    def round_of(self, number: int) -> int:
        """Return the round of a request, counted from 0."""
        return number * self.num_rounds // self.num_requests


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLimits:
    """Limits of each replica, as options of `promptcache serve`, and its memory for modules."""

    memory_bytes: float
    max_rows: int = 32
    step_tokens: int = 64
    max_waiting: int = 256


@dataclass(slots=True, eq=False)
class FleetRequest:
    """A request.

    Attributes:
        num_pending: Tokens of the prompt that are not prefilled yet.
        num_misses: Modules that were not in memory.
        first_token_at: None before the first token.
        ended_at: None before the end, and if the request was refused.
    """

    arrived_at: float
    schema: int
    modules: tuple[int, ...]
    num_pending: int
    replica: int = 0
    num_misses: int = 0
    first_token_at: float | None = None
    ended_at: float | None = None


@dataclass(slots=True, kw_only=True)
class FleetTotals:
    """What happened in a simulation.

    Attributes:
        requests: In order of arrival.
        busy_s: Seconds in which replicas computed steps or took requests, all together.
        fetch_wait_s: Seconds in which they only waited for modules.
        load_area: The integral of the number of requests in the system over time.
        num_steps: Forward passes.
        num_decoded: Tokens that were decoded in them, first tokens not included.
        num_prefilled: Tokens of prompts that were computed in them.
        num_read: Tokens of modules that they attended to.
    """

    requests: list[FleetRequest]
    busy_s: float = 0.0
    fetch_wait_s: float = 0.0
    load_area: float = 0.0
    num_steps: int = 0
    num_decoded: int = 0
    num_prefilled: int = 0
    num_read: int = 0

    @property
    def counted(self) -> list[FleetRequest]:
        """The requests after the first 30 %."""
        return self.requests[int(_WARM_UP * len(self.requests)) :]

    @property
    def ttfts(self) -> list[float]:
        """Sorted seconds from arrival to first token."""
        return sorted(each.first_token_at - each.arrived_at for each in self.counted if each.first_token_at is not None)

    @property
    def hit_rate(self) -> float:
        """Fraction of modules that were in memory."""
        answered = [each for each in self.counted if each.ended_at is not None]
        return 1 - sum(each.num_misses for each in answered) / max(1, sum(len(each.modules) for each in answered))

    @property
    def refused_rate(self) -> float:
        """Fraction of requests that met a full queue."""
        return sum(each.ended_at is None for each in self.counted) / len(self.counted)

    def largest_share(self, num_replicas: int) -> float:
        """Return the requests of the replica with the most, over the mean of all replicas."""
        return max(Counter(each.replica for each in self.counted).values()) * num_replicas / len(self.counted)


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile of sorted values; not a number without any."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else math.nan


def traffic_of(traffic: Traffic) -> Iterator[FleetRequest]:
    """Yield the requests, in order of arrival. The same traffic yields the same ones."""
    draw, now = random.Random(traffic.seed), 0.0
    schemas = list(accumulate(_zipf(traffic.num_schemas, traffic.skew)))
    modules = _zipf(traffic.num_modules, traffic.skew)
    for number in range(traffic.num_requests):
        if number and traffic.round_of(number) > traffic.round_of(number - 1):
            now += _PAUSE_S
        now += draw.expovariate(traffic.rate)
        schema = bisect(schemas, draw.random() * schemas[-1])
        keys = [math.log(1 - draw.random()) / weight for weight in modules]  # the largest are a weighted sample
        used = heapq.nlargest(traffic.num_used, range(traffic.num_modules), key=keys.__getitem__)
        yield FleetRequest(now, schema, tuple(sorted(used)), traffic.new_tokens)


def _zipf(count: int, skew: float) -> list[float]:
    return [rank**-skew for rank in range(1, count + 1)]


class ModuleMemory:
    """The modules in the memory of a replica, evicted as in `kv`."""

    def __init__(self, budget_bytes: float) -> None:
        self._budget_bytes = budget_bytes
        self._keys = GreedyDual()
        self._in_use: Counter[str] = Counter()

    def use(self, costs: Mapping[str, float], nbytes: int) -> int:
        """Use modules, and add those that are missing; return their number. All stay until `release`.

        Args:
            costs: The keys of the modules, with what encoding them costs.
            nbytes: Bytes of each.
        """
        keys = tuple(costs)
        self._in_use.update(keys)
        missing = [key for key in keys if key not in self._keys]
        for key in keys:
            self._keys.touch(key)
        for key in missing:
            needed = max(0, self._keys.nbytes + nbytes - self._budget_bytes)
            victims = self._keys.victims(math.ceil(needed), lambda each: self._in_use[each] > 0)
            if victims is not None:
                self._keys.evict(victims)
                self._keys.add(key, nbytes, costs[key])
        return len(missing)

    def release(self, keys: Iterable[str]) -> None:
        """Let modules be evicted, unless another request uses them."""
        self._in_use.subtract(keys)
        self._in_use = +self._in_use


class _FleetReplica:
    """A replica. `advance` ends a phase of equal steps and starts the next one."""

    def __init__(self, number: int, costs: EngineCosts, traffic: Traffic, limits: ReplicaLimits) -> None:
        self.number = number
        self.load = 0
        self.end_at: float | None = None
        self._costs = costs
        self._traffic = traffic
        self._limits = limits
        self._memory = ModuleMemory(limits.memory_bytes)
        self._waiting: deque[FleetRequest] = deque()
        self._fetching: list[tuple[float, int, FleetRequest]] = []  # a heap by the time at which all modules are there
        self._fetches_until = 0.0
        self._read: Counter[str] = Counter()  # modules of the requests that have joined
        self._prefilling: deque[FleetRequest] = deque()
        self._rows: list[tuple[int, int, FleetRequest]] = []  # a heap by the step in which they end
        self._num_fetched = 0
        self._num_joined = 0
        self._num_steps = 0
        # The current phase.
        self._started_at = 0.0
        self._first_step_at = 0.0
        self._step_s = 0.0
        self._phase_steps = 0
        self._step_read = 0
        self._chunks: list[tuple[FleetRequest, int]] = []

    def submit(self, request: FleetRequest, now: float) -> bool:
        """Take a request, or refuse it. A phase of decoding ends with its current step."""
        request.replica = self.number
        if len(self._waiting) >= self._limits.max_waiting:
            return False
        self._waiting.append(request)
        self.load += 1
        if self.end_at is None:
            self._start(now)
        elif not self._phase_steps:
            self.end_at = max(now, self._first_step_at)
        elif not self._chunks:
            begun = math.ceil((now - self._first_step_at) / self._step_s)
            self._phase_steps = min(self._phase_steps, max(1, begun))
            self.end_at = self._first_step_at + self._phase_steps * self._step_s
        return True

    def advance(self, totals: FleetTotals) -> int:
        """End the phase, start the next one, and return the number of requests that ended."""
        assert self.end_at is not None
        now, ended = self.end_at, []
        num_rows = len(self._rows)
        self._num_steps += self._phase_steps
        totals.num_steps += self._phase_steps
        totals.num_decoded += num_rows * self._phase_steps
        totals.num_read += self._step_read * self._phase_steps
        if self._phase_steps:
            totals.busy_s += now - self._started_at
        else:
            totals.busy_s += self._first_step_at - self._started_at
            totals.fetch_wait_s += now - self._first_step_at
        for request, num_tokens in self._chunks:
            request.num_pending -= num_tokens
            totals.num_prefilled += num_tokens
            if not request.num_pending:
                request.first_token_at = now
                self._prefilling.remove(request)
                last = self._num_steps + self._traffic.answer_tokens - 1
                heapq.heappush(self._rows, (last, self._num_joined, request))
                self._num_joined += 1
        while self._rows and self._rows[0][0] <= self._num_steps:
            ended.append(heapq.heappop(self._rows)[2])
        for request in ended:
            request.ended_at = now
            self._memory.release(_keys(request))
            self._read.subtract(_keys(request))
        self._read = +self._read
        self.load -= len(ended)
        self._start(now)
        return len(ended)

    def _start(self, now: float) -> None:
        """Start a phase: prefill one step, decode until a row ends or a request joins, or wait for modules.

        Modules are fetched for all requests that may join, one request after another.
        """
        costs, first_step_at = self._costs, now
        while self._waiting and len(self._rows) + len(self._prefilling) + len(self._fetching) < self._limits.max_rows:
            first_step_at += costs.request_s
            self._fetch(self._waiting.popleft(), first_step_at)
        while self._fetching and self._fetching[0][0] <= first_step_at:
            request = heapq.heappop(self._fetching)[2]
            self._prefilling.append(request)
            self._read.update(_keys(request))
        room = self._limits.step_tokens if self._rows else CHUNK_TOKENS
        self._started_at, self._first_step_at = now, first_step_at
        self._chunks, self._phase_steps = [], 1
        for request in self._prefilling:
            if room > 0:
                self._chunks.append((request, min(room, request.num_pending)))
                room -= self._chunks[-1][1]
        self._step_read = len(self._read) * self._traffic.module_tokens
        self._step_s = costs.step_s + costs.row_s * len(self._rows) + costs.read_token_s * self._step_read
        self._step_s += costs.prefill_token_s * sum(num_tokens for _, num_tokens in self._chunks)
        next_at = self._fetching[0][0] if self._fetching else math.inf
        if not self._chunks and self._rows:
            num_steps = self._rows[0][0] - self._num_steps
            self._phase_steps = max(1, math.ceil(min(num_steps, (next_at - first_step_at) / self._step_s)))
        if self._chunks or self._rows:
            self.end_at = first_step_at + self._phase_steps * self._step_s
        else:
            self._phase_steps = 0
            self.end_at = next_at if self._fetching else None

    def _fetch(self, request: FleetRequest, now: float) -> None:
        """Fetch the modules of a request that are not in memory, after those of earlier requests."""
        tokens = self._traffic.module_tokens
        nbytes = math.ceil(tokens * self._costs.token_bytes)
        costs = [cost_at(tokens, (module + 1) * tokens - 1) for module in request.modules]
        request.num_misses = self._memory.use(dict(zip(_keys(request), costs, strict=True)), nbytes)
        if request.num_misses:
            now = self._fetches_until = max(now, self._fetches_until) + request.num_misses * self._costs.miss_s(tokens)
        self._num_fetched += 1
        heapq.heappush(self._fetching, (now, self._num_fetched, request))


def _keys(request: FleetRequest) -> tuple[str, ...]:
    return tuple(f"{request.schema}/{module}" for module in request.modules)


Policy: TypeAlias = Callable[[int, Sequence[int]], int]
"""Returns the replica of a request from its schema and the loads of all replicas."""

_MOST_KNOWN = 64


class HashOrders:
    """The replicas by hash, for each schema that is asked for. The first 64 are kept, the others once they are used."""

    def __init__(self, num_replicas: int) -> None:
        self.num_replicas = num_replicas
        self._names = [str(number) for number in range(num_replicas)]
        self._first: dict[int, tuple[int, ...]] = {}
        self._others: dict[int, tuple[int, ...]] = {}

    def order(self, schema: int) -> Iterator[int]:
        """Yield the replicas of a schema."""
        if schema not in self._first:
            self._first[schema] = self._by_hash(schema)[:_MOST_KNOWN]
        yield from self._first[schema]
        if schema not in self._others:
            self._others[schema] = self._by_hash(schema)[_MOST_KNOWN:]
        yield from self._others[schema]

    def _by_hash(self, schema: int) -> tuple[int, ...]:
        return tuple(map(int, by_hash(str(schema), self._names)))


def hashing(orders: HashOrders) -> Policy:
    """Return the policy of a balancer that hashes the schema."""
    return lambda schema, _loads: next(orders.order(schema))


def least_loaded(_orders: HashOrders) -> Policy:
    """Return the policy of a balancer that takes the least loaded replica; equal ones in turn."""
    last = 0

    def choose(_schema: int, loads: Sequence[int]) -> int:
        nonlocal last
        least = min(loads)
        try:
            last = loads.index(least, last + 1)
        except ValueError:
            last = loads.index(least)
        return last

    return choose


def router(orders: HashOrders) -> Policy:
    """Return the policy of `promptcache.scale.route`, whose first replica takes the request."""

    def choose(schema: int, loads: Sequence[int]) -> int:
        return next(by_load(orders.order(schema), loads.__getitem__, sum(loads) / len(loads)))

    return choose


POLICIES: Mapping[str, Callable[[HashOrders], Policy]] = {
    "hashing": hashing,
    "least loaded": least_loaded,
    "router": router,
}


def simulate(
    costs: EngineCosts, traffic: Traffic, limits: ReplicaLimits, policy: str, orders: HashOrders
) -> FleetTotals:
    """Simulate the requests until all have ended.

    Args:
        policy: A name of `POLICIES`.
        orders: Of as many replicas as there are; simulations with equal replicas may share it.
    """
    replicas = [_FleetReplica(number, costs, traffic, limits) for number in range(orders.num_replicas)]
    loads = [0] * orders.num_replicas
    choose = POLICIES[policy](orders)
    events: list[tuple[float, int]] = []  # ends of phases; one that was put off or brought forward is there twice
    totals = FleetTotals(requests=[])
    seen_at, in_system = 0.0, 0

    def note(replica: _FleetReplica) -> None:
        loads[replica.number] = replica.load
        if replica.end_at is not None:
            heapq.heappush(events, (replica.end_at, replica.number))

    def run_until(now: float) -> None:
        nonlocal seen_at, in_system
        while events and events[0][0] <= now:
            at, number = heapq.heappop(events)
            if replicas[number].end_at != at:
                continue
            totals.load_area += in_system * (at - seen_at)
            seen_at = at
            in_system -= replicas[number].advance(totals)
            note(replicas[number])

    for request in traffic_of(traffic):
        now = request.arrived_at
        run_until(now)
        totals.load_area += in_system * (now - seen_at)
        seen_at = now
        replica = replicas[choose(request.schema, loads)]
        totals.requests.append(request)
        if replica.submit(request, now):
            in_system += 1
            note(replica)
    run_until(math.inf)
    return totals


def busiest_rate(costs: EngineCosts, traffic: Traffic, limits: ReplicaLimits) -> float:
    """Return the requests per second that one replica can answer if all modules are in memory."""
    rows = limits.max_rows
    read_s = costs.read_token_s * traffic.module_tokens * _modules_together(traffic, rows)
    decode_s = (traffic.answer_tokens - 1) * ((costs.step_s + read_s) / rows + costs.row_s)
    chunks_s = costs.prefill_token_s * traffic.new_tokens
    return 1 / (costs.request_s + decode_s + chunks_s + (costs.step_s + read_s) / rows)


def _modules_together(traffic: Traffic, rows: int) -> float:
    """Return how many modules as many requests use together: the mean of 30 samples."""
    requests = list(traffic_of(replace(traffic, num_requests=30 * rows, rate=1.0)))
    return sum(num_distinct(requests[start : start + rows]) for start in range(0, len(requests), rows)) / 30


def num_distinct(requests: Iterable[FleetRequest]) -> int:
    """Return the number of modules that requests use; a module of several requests counts once."""
    return len({key for each in requests for key in _keys(each)})
