"""`python -m benchmarks repair` compares requests that differ in their repair only."""

from __future__ import annotations

from benchmarks.repairs import ARGUMENT_TOKENS, compare_repairs
from promptcache.bench.workload import Sizes
from promptcache.language import Repair
from promptcache.testing.tiny_model import tiny_model


def test_each_repair_computes_what_it_says() -> None:
    """One boundary token follows each argument; `first-K` adds K tokens for each later module, `all` all but the first."""
    sizes = Sizes(num_modules=3, module_tokens=40, new_tokens=5)

    report = compare_repairs(tiny_model(), sizes, [*map(Repair.parse, ("slots", "first-4", "all"))], repeats=1)

    none, slots, first, full = (row["new_tokens"] for row in report.rows)
    assert none == 3 * ARGUMENT_TOKENS + 5
    assert slots == none + 3
    assert first == slots + 2 * 4
    total = report.rows[0]["reused_tokens"] + none
    assert {row["reused_tokens"] + row["new_tokens"] for row in report.rows} == {total}
    assert full == total - 20
    assert [row["repair"] for row in report.rows] == ["none", "slots", "first-4", "all"]
