"""Launches are counted without a GPU: `promptcache bench … --count-launches`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from click.testing import CliRunner

from promptcache.bench import launches
from promptcache.bench.launches import KernelCounter, LaunchCase, count_decoding, count_ttft, launch_cases
from promptcache.bench.workload import Sizes
from promptcache.cli.app import app
from promptcache.runtime import Batch
from promptcache.runtime.step_graphs import StepGraphs

pytestmark = pytest.mark.long

SIZES = Sizes(num_modules=4, module_tokens=64, new_tokens=3)


@pytest.mark.parametrize(
    ("run", "num_kernels", "num_operations"),
    [
        (lambda x: x.view(6)[2:].unsqueeze(0), 0, 3),
        (lambda x: torch.empty_like(x), 0, 1),
        (lambda x: x.mul_(2), 1, 1),
        (lambda x: x[:, :0].copy_(x[:, :0]), 0, 3),
        (lambda x: (x @ x.T).softmax(-1), 2, 3),
        (lambda x: torch.cat([x, x]).transpose(0, 1).reshape(12), 2, 4),
    ],
    ids=["views", "allocation", "in place", "empty copy", "two", "a reshape that copies"],
)
def test_operations_with_a_result_are_kernels(
    run: Callable[[torch.Tensor], object], num_kernels: int, num_operations: int
) -> None:
    """Views, allocations and copies of nothing start no kernel; they are operations of the host."""
    states = torch.empty(2, 3, device="meta")

    with KernelCounter() as counter:
        run(states)

    assert (counter.num_kernels, counter.num_operations) == (num_kernels, num_operations)


def test_stored_kv_costs_launches() -> None:
    """The table has each case once, for rows of one and of different lengths; without modules there are fewest."""
    report = count_ttft("tiny", torch.bfloat16, [SIZES])

    counts = {row["case"]: row["kernels_per_layer"] for row in report.rows}
    assert [*counts] == [name for name, case in launch_cases(SIZES).items() if not case.own]
    assert min(counts.values()) == counts["no modules"] > 30
    assert all(row["operations_per_layer"] > row["kernels_per_layer"] for row in report.rows)
    assert len({*report.cells}) == len(report.rows)


def test_several_new_tokens_start_as_many_kernels_as_one() -> None:
    """Queries of several tokens are not copied: the count depends on the number of tokens where there are masks only."""
    sizes = [replace(SIZES, new_tokens=count) for count in (2, 40)]

    few, many = (
        {row["case"]: row["kernels_per_layer"] for row in count_ttft("tiny", torch.bfloat16, [each]).rows}
        for each in sizes
    )

    for case in ("no modules", "one length", "different lengths", "history"):
        assert few[case] == many[case] <= few["no modules"] + 15


def test_with_triton_every_layer_starts_40_kernels_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of rows, segments and windows."""
    pytest.importorskip("triton", reason="triton is not installed")
    monkeypatch.setattr(launches, "STEP_ROWS", (1, 3))

    reports = [count("tiny", torch.bfloat16, [SIZES]) for count in (count_ttft, count_decoding)]

    assert max(row["kernels_per_layer"] for report in reports for row in report.rows) <= 40


@pytest.mark.parametrize(("window", "num_kernels"), [(None, 4), (8, 4)])
def test_with_a_graph_the_host_starts_few_kernels(window: int | None, num_kernels: int) -> None:
    """Beside the graph: copies of the tokens, of the places of new KV and of the lists of a window, and of the logits."""
    pytest.importorskip("triton", reason="triton is not installed")
    model = launches._Models("tiny", torch.bfloat16).with_layers(2, window)
    replays: list[None] = []
    graph = Mock(replay=lambda: replays.append(None))
    batch = Batch(model, graphs=StepGraphs(model, lambda run: (graph, run())))
    rows = [launches._join(batch, model, LaunchCase(lengths=(16, 16)), 1, launches._handles(model, (16, 16), 0))]
    batch.step([(rows[0], [0])])

    with KernelCounter() as counter:
        batch.step([(rows[0], [0])])

    assert (len(replays), counter.num_kernels) == (2, num_kernels)


def test_modules_of_different_lengths_differ() -> None:
    """Cases with different lengths hold as many tokens as those with one length."""
    cases = launch_cases(SIZES)

    assert sum(cases["different lengths"].lengths) == sum(cases["one length"].lengths) == SIZES.cached_tokens
    assert len({*cases["different lengths"].lengths}) == SIZES.num_modules


def test_a_command_counts_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """`decode --count-launches` counts steps of one row and of many, as JSON too."""
    monkeypatch.setattr(launches, "STEP_ROWS", (1, 2))
    words = ["decode", "--shape", "tiny", "--modules", "2", "--module-tokens", "8", "--dtype", "bfloat16"]

    result = CliRunner().invoke(app, ["bench", *words, "--count-launches", "--json"])

    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert [*dict.fromkeys(row["rows"] for row in rows)] == [1, 2]
    assert all(row["kernels_per_layer"] % 0.5 == 0 for row in rows)  # of two layers


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ttft", "--count-launches", "--model", "demo"], "give --shape instead of --model"),
        (["decode", "--count-launches", "--model", "demo"], "give --shape instead of --model"),
        (["ttft", "--count-launches", "--plot", "a.svg"], "there is nothing to plot: leave out --plot"),
    ],
)
def test_what_counting_cannot_use_is_refused(words: list[str], message: str) -> None:
    """A model and a plot are refused before anything is counted."""
    result = CliRunner().invoke(app, ["bench", *words])

    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
