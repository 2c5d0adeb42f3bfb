"""The benchmark of many replicas: `promptcache bench scale`. It is simulated, and says so."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from promptcache.bench.fleet import (
    POLICIES,
    EngineCosts,
    FleetTotals,
    HashOrders,
    ReplicaLimits,
    Traffic,
    busiest_rate,
    percentile,
    simulate,
)
from promptcache.bench.harness import BenchReport, Progress, silent
from promptcache.diagnostics import InvalidValue


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSizes:
    """What is simulated.

    Attributes:
        one: The traffic of one replica; its rate is not used. More replicas get as many times its requests and schemas.
        busy: Requests that arrive, as a fraction of those that a replica can answer if all modules are in memory.
        memory_bytes: For the modules of each replica; None is room for all modules of twice its share of the schemas.
    """

    one: Traffic
    busy: float
    memory_bytes: int | None

    def traffic(self, num_replicas: int) -> Traffic:
        """Return the traffic of as many replicas; `busy` says at which rate."""
        one = self.one
        return replace(one, num_requests=one.num_requests * num_replicas, num_schemas=one.num_schemas * num_replicas)

    def limits(self, token_bytes: float) -> ReplicaLimits:
        """Return the limits of a replica."""
        if self.memory_bytes is not None:
            return ReplicaLimits(memory_bytes=self.memory_bytes)
        module_bytes = math.ceil(self.one.module_tokens * token_bytes)
        return ReplicaLimits(memory_bytes=2 * self.one.num_schemas * self.one.num_modules * module_bytes)


def read_costs(text: str) -> EngineCosts:
    """Return the costs in a JSON object, as `costs` in the output of the benchmark.

    Raises:
        InvalidValue: A cost is missing, unknown or negative.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise InvalidValue(f"the costs are not JSON: {error}") from None
    names = [each.name for each in fields(EngineCosts)]
    if not isinstance(data, dict) or sorted(data) != sorted(names):
        raise InvalidValue(f"the costs are a JSON object with {', '.join(names)}")
    for name, value in data.items():
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
            raise InvalidValue(f"{name}={value!r}: a number of 0 or more is expected")
    if not data["step_s"] or not data["token_bytes"]:
        raise InvalidValue("step_s and token_bytes are more than 0")
    return EngineCosts(**data)


def measured_costs(
    model: str, sizes: ScaleSizes, threads: int | None, progress: Progress = silent
) -> tuple[EngineCosts, ScaleSizes]:
    """Measure the costs of a replica on this machine.

    Returns:
        The costs, and the sizes with the tokens that modules and questions have for this model.
    """
    from promptcache.bench.replicas import ReplicaSettings, calibrate

    progress("a replica on this machine", 0, 1)
    with TemporaryDirectory() as folder:
        settings = ReplicaSettings(model=model, folder=Path(folder), threads=threads)
        costs, traffic = calibrate(settings, sizes.one)
    one = replace(sizes.one, module_tokens=traffic.module_tokens, new_tokens=traffic.new_tokens)
    return costs, replace(sizes, one=one)


def compare_scale(
    costs: EngineCosts, sizes: ScaleSizes, replicas: Sequence[int], progress: Progress = silent
) -> BenchReport:
    """Simulate as many replicas under each policy of a balancer. All policies get the same requests."""
    cells, rows = [], []
    limits = sizes.limits(costs.token_bytes)
    for number, num in enumerate(replicas):
        orders, base = HashOrders(num), sizes.traffic(num)
        traffic = replace(base, rate=sizes.busy * num * busiest_rate(costs, sizes.one, limits))
        for place, policy in enumerate(POLICIES):
            progress(f"{num} replicas, {policy}", number * len(POLICIES) + place, len(replicas) * len(POLICIES))
            row = _row(num, policy, simulate(costs, traffic, limits, policy, orders), costs, traffic)
            cells.append(
                (
                    f"{num:,}",
                    policy,
                    f"{100 * row['hit_rate']:.1f}",
                    *(f"{1e3 * row['ttft_s'][name]:,.0f}" for name in ("p50", "p90", "p99")),
                    f"{row['loaded_bytes_per_s'] / 1e6:,.1f}",
                    f"{100 * row['refused_rate']:.1f}",
                    f"{row['largest_share']:.2f}",
                )
            )
            rows.append({**row, "costs": asdict(costs), "traffic": asdict(traffic), "limits": asdict(limits)})
    rate = rows[0]["rate"] / rows[0]["replicas"]
    title = (
        f"SIMULATED, not measured: {sizes.one.num_schemas} schemas and {rate:.2f} requests/s for each replica, "
        f"skew {sizes.one.skew:g}; TTFT in ms"
    )
    columns = ("replicas", "balancer", "hits, %", "p50", "p90", "p99", "loaded MB/s", "refused, %", "largest share")
    return BenchReport(name="scale", title=title, columns=columns, cells=tuple(cells), rows=tuple(rows))


def _row(num: int, policy: str, totals: FleetTotals, costs: EngineCosts, traffic: Traffic) -> dict[str, Any]:
    """Return the figures of a simulation, without its first requests."""
    ttfts, counted = totals.ttfts, totals.counted
    misses = sum(each.num_misses for each in counted) if costs.load_bytes_per_s else 0
    seconds = counted[-1].arrived_at - counted[0].arrived_at
    loaded = misses * traffic.module_tokens * costs.token_bytes
    return {
        "simulated": True,
        "replicas": num,
        "balancer": policy,
        "rate": traffic.rate,
        "hit_rate": totals.hit_rate,
        "ttft_s": {name: percentile(ttfts, share) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))},
        "loaded_bytes_per_s": loaded / seconds if seconds else 0.0,
        "refused_rate": totals.refused_rate,
        "largest_share": totals.largest_share(num),
    }


def check_scale(model: str, sizes: ScaleSizes, threads: int | None, progress: Progress = silent) -> BenchReport:
    """Compare the simulation with one and with two real replicas on this machine, under the same requests.

    Each replica has memory for half of the modules, so that some are loaded from the store. Costs are measured before
    and after the requests, because the speed of a machine changes.
    """
    from promptcache.bench.replicas import ReplicaSettings, calibrate, measure, running

    cells, rows = [], []
    for step, num in enumerate((1, 2)):
        progress(f"{num} real replicas", step, 2)
        with TemporaryDirectory() as folder:
            words = sizes.traffic(num)
            settings = ReplicaSettings(model=model, folder=Path(folder), threads=threads)
            before, base = calibrate(settings, words)
            num_modules = base.num_schemas * base.num_modules
            memory = math.ceil(num_modules / num / 2 * base.module_tokens * before.token_bytes)
            limits = ReplicaLimits(memory_bytes=memory)
            one = replace(base, num_schemas=sizes.one.num_schemas)
            rate = sizes.busy * num * busiest_rate(before, one, limits)
            orders = HashOrders(num)
            with running(replace(settings, memory_bytes=memory), num) as urls:
                homes = [urls[next(orders.order(schema))] for schema in range(base.num_schemas)]
                answers = measure(homes, replace(words, rate=rate))
        with TemporaryDirectory() as folder:
            after, _ = calibrate(replace(settings, folder=Path(folder)), words)
        costs = EngineCosts(**{name: (each + asdict(after)[name]) / 2 for name, each in asdict(before).items()})
        traffic = replace(base, rate=rate)
        totals = simulate(costs, traffic, limits, "hashing", orders)
        counted = answers[len(answers) - len(totals.counted) :]
        ttfts = sorted(each.ttft_s for each in counted)
        hits = sum(each.num_hits for each in counted) / sum(each.num_modules for each in counted)
        pairs = {
            "TTFT p50, ms": (1e3 * percentile(ttfts, 0.5), 1e3 * percentile(totals.ttfts, 0.5)),
            "TTFT p90, ms": (1e3 * percentile(ttfts, 0.9), 1e3 * percentile(totals.ttfts, 0.9)),
            "TTFT mean, ms": (1e3 * sum(ttfts) / len(ttfts), 1e3 * sum(totals.ttfts) / len(totals.ttfts)),
            "hits, %": (100 * hits, 100 * totals.hit_rate),
        }
        for name, (real, simulated) in pairs.items():
            cells.append((str(num), name, f"{real:.1f}", f"{simulated:.1f}", f"{simulated / real:.2f}"))
        rows.append(
            {
                "replicas": num,
                "measured": {name: pair[0] for name, pair in pairs.items()},
                "simulated": {name: pair[1] for name, pair in pairs.items()},
                "costs": asdict(costs),
                "traffic": asdict(traffic),
                "limits": asdict(limits),
            }
        )
    return BenchReport(
        name="scale",
        title="Real replicas on this machine, and their simulation",
        columns=("replicas", "figure", "measured", "simulated", "simulated / measured"),
        cells=tuple(cells),
        rows=tuple(rows),
    )
