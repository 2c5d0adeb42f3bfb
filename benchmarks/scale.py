"""The benchmark of many replicas: `python -m benchmarks scale`. It is simulated, and says so."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.fleet import (
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
from benchmarks.other_work import OtherWork
from promptcache.bench.harness import BenchReport, Progress, silent
from promptcache.diagnostics import InvalidValue

_CHECK_ROUNDS = 4
"""Rounds of the requests to real replicas. Costs are measured between them."""

_CHECK_SAMPLES = 6
"""Requests of each length for each of these measurements."""


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
    from benchmarks.replicas import ReplicaSettings, calibrating

    progress("a replica on this machine", 0, 1)
    with TemporaryDirectory() as folder:
        settings = ReplicaSettings(model=model, folder=Path(folder), threads=threads)
        with calibrating(settings, sizes.one) as calibration:
            costs, traffic = calibration.costs(), calibration.traffic
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

    Each replica has memory for half of the modules, so that some are loaded from the store. The requests come in
    rounds. Costs are measured before and after each round, because the speed of a machine changes: those of a further
    replica, while others are as busy as in a round, because replicas on one machine slow each other down.
    """
    rows = []
    for step, num in enumerate((1, 2)):
        progress(f"{num} real replicas", step, 2)
        with TemporaryDirectory() as folder:
            rows.append(_check_row(num, sizes, model, Path(folder), threads))
    others = ", ".join(f"{row['other_work']:.0%}" for row in rows)
    return BenchReport(
        name="scale",
        title=f"Real replicas on this machine, and their simulation. Other programs used {others} of its cores",
        columns=("replicas", "figure", "measured", "simulated", "simulated / measured"),
        cells=tuple(
            (
                str(row["replicas"]),
                name,
                f"{real:.1f}",
                f"{row['simulated'][name]:.1f}",
                f"{row['simulated'][name] / real:.2f}",
            )
            for row in rows
            for name, real in row["measured"].items()
        ),
        rows=tuple(rows),
    )


def _check_row(num: int, sizes: ScaleSizes, model: str, folder: Path, threads: int | None) -> dict[str, Any]:
    """Return measured and simulated figures of as many replicas."""
    from benchmarks.replicas import ReplicaSettings, calibrating, measure, running

    others = OtherWork()
    settings = ReplicaSettings(model=model, folder=folder, threads=threads)
    words = replace(sizes.traffic(num), num_rounds=_CHECK_ROUNDS)
    orders = HashOrders(num)
    with calibrating(settings, words, num) as calibration:
        idle, base = calibration.costs(_CHECK_SAMPLES), calibration.traffic
        module_bytes = math.ceil(base.module_tokens * idle.token_bytes)
        # Half of the modules, and room for the few tokens outside of them.
        memory = (1 + math.ceil(base.num_schemas * base.num_modules / num / 2)) * module_bytes
        limits = ReplicaLimits(memory_bytes=memory)
        one = replace(base, num_schemas=sizes.one.num_schemas)
        rate = sizes.busy * busiest_rate(idle, one, limits)  # of each
        with running(replace(settings, memory_bytes=memory), num) as urls:
            homes = [urls[next(orders.order(schema))] for schema in range(base.num_schemas)]
            found = [calibration.costs(_CHECK_SAMPLES, rate)]
            sent = replace(words, rate=rate * num)
            answers = measure(homes, sent, lambda: found.append(calibration.costs(_CHECK_SAMPLES, rate)))
    costs, traffic = _mean(found), replace(base, rate=rate * num)
    totals = simulate(costs, traffic, limits, "hashing", orders)
    counted = answers[len(answers) - len(totals.counted) :]
    ttfts = sorted(each.ttft_s for each in counted)
    hit_rate = sum(each.num_hits for each in counted) / sum(each.num_modules for each in counted)
    return {
        "replicas": num,
        "other_work": others.share,
        "measured": _check_figures(ttfts, hit_rate),
        "simulated": _check_figures(totals.ttfts, totals.hit_rate),
        "costs": asdict(costs),
        "traffic": asdict(traffic),
        "limits": asdict(limits),
    }


def _check_figures(ttfts: Sequence[float], hit_rate: float) -> dict[str, float]:
    """Return the figures of a table from sorted seconds."""
    return {
        "TTFT p50, ms": 1e3 * percentile(ttfts, 0.5),
        "TTFT p90, ms": 1e3 * percentile(ttfts, 0.9),
        "TTFT mean, ms": 1e3 * statistics.fmean(ttfts),
        "hits, %": 100 * hit_rate,
    }


def _mean(found: Sequence[EngineCosts]) -> EngineCosts:
    names = [each.name for each in fields(EngineCosts)]
    return EngineCosts(**{name: statistics.fmean(getattr(each, name) for each in found) for name in names})
