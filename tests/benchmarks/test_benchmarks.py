"""The benchmarks of this repository: their commands, and what they compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from benchmarks.__main__ import _engine, command
from benchmarks.kinds import compare_kinds, kinds
from benchmarks.prefixes import BLOCKS, PADDED_BLOCKS, REPAIR_ALL, PrefixSizes, compare_prefixes, num_needed
from benchmarks.quality.plot import plot_quality, quality_curves
from promptcache.bench.harness import BenchReport, silent
from promptcache.bench.plot import panels, plot
from promptcache.bench.shapes import random_shape
from promptcache.bench.workload import Sizes
from promptcache.runtime.hf.model import Model

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def model() -> Model:
    """A tiny shape in float64."""
    return Model(random_shape("tiny", torch.float64, torch.device("cpu")))


_TINY = ["--shape", "tiny", "--modules", "2", "--module-tokens", "8"]


@pytest.mark.parametrize(
    "words",
    [
        ["disk", *_TINY, "--new", "1", "--repeats", "1"],
        ["memory", *_TINY, "--requests", "2"],
        ["kinds", "--shape", "tiny", "--cached", "0", "--cached", "8", "--tokens", "2", "--repeats", "1"],
        ["chat", "--shape", "tiny", "--chats", "1", "--turns", "2", "--modules", "1", "--module-tokens", "8"],
        ["prefixes", "--shape", "tiny", "--subjects", "2", "--questions", "2", "--prefix-tokens", "40", "--new", "4"],
        ["batch", *_TINY, "--rows", "2", "--tokens", "2", "--repeats", "1"],
        ["prompt", "examples/travel/miami.xml", "--schema", "schemas/travel.xml", "--repeats", "1"],
        ["quality", "--set", "facts", "--count", "1", "--repeats", "1"],
        ["retrieval", "--documents", "50", "--questions", "2", "--dtype", "float64"],
        ["idle", "--requests", "4", "--rate", "50", "--repeats", "1", "--module-tokens", "8", "--tokens", "2"],
        ["structured", "--rows", "2", "--tokens", "3", "--repeats", "1"],
    ],
    ids=lambda words: words[0],
)
def test_commands_write_one_line_of_json(words: list[str]) -> None:
    """With --json, one line of JSON with every run in it is all that a benchmark writes."""
    result = CliRunner().invoke(command, [*words, "--json"])

    assert result.exit_code == 0, result.output
    assert (result.stdout.count("\n"), result.stderr) == (1, "")
    data = json.loads(result.stdout)
    assert data["rows"]
    assert data["hardware"]["torch"] == torch.__version__
    assert data["device"] == "cpu"
    assert "--dtype" not in words or data["dtype"] == words[-1]


@pytest.mark.parametrize("words", [["memory"], ["kinds", "--cached", "8"]], ids=" ".join)
def test_nothing_to_plot_is_said_before_anything_is_measured(words: list[str], tmp_path: Path) -> None:
    """A drawing without an axis is refused before anything is measured."""
    result = CliRunner().invoke(command, [*words, "--shape", "tiny", "--plot", str(tmp_path / "p.svg")])

    assert (result.exit_code, result.stdout) == (2, "")
    assert "needs an option given several times" in result.stderr


@pytest.mark.parametrize("num_cached", [0, 20])
def test_kinds_of_caches_give_the_same_tokens(model: Model, num_cached: int) -> None:
    """Every kind answers the same request, time after time, and the model keeps its attention."""
    sizes = Sizes(num_modules=min(num_cached, 1), module_tokens=num_cached, new_tokens=4, adjacent=True)
    installed = model.hf.config._attn_implementation

    runs = kinds(model, sizes, 6)
    answers = [run() for _ in range(2) for run in runs.values()]

    assert list(runs) == ["no cache", "DynamicCache", "StaticCache", "prompt cache"]
    assert len({answer.token_ids for answer in answers}) == 1
    assert len(answers[0].token_ids) == 6
    assert all(min(answer.cost) > 0 for answer in answers)
    assert model.hf.config._attn_implementation == installed


def test_long_prompts_are_not_measured_without_a_cache(
    model: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Beyond the limit a size has the other kinds only, and a plot shows each kind where it was measured."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("benchmarks.kinds.MAX_UNCACHED", 10)

    report = compare_kinds(model, [0, 20], new_tokens=2, num_tokens=2, repeats=1)
    plot(report, tmp_path / "p.svg", model={}, hardware={})

    assert [len(row["seconds"]) for row in report.rows] == [4, 3]
    curves = panels(report, "cached_tokens")[""]
    assert [place for place, _ in curves["no cache"]] == [0]
    assert [place for place, _ in curves["prompt cache"]] == [0, 20]
    assert (tmp_path / "p.svg").stat().st_size > 5_000


@pytest.mark.slow
def test_caches_of_prefixes_reach_the_same_logits(model: Model) -> None:
    """Every alternative gives the logits of every question, in each order, batch size, and built or not."""
    sizes = PrefixSizes(subjects=2, questions=2, prefix_tokens=40, new_tokens=10)

    report = compare_prefixes(model, sizes, [1, 4], repeats=1)

    assert max(row["distance"] for row in report.rows) < 1e-12
    assert [(row["batch"], row["order"], row["built"]) for row in report.rows] == [
        (batch, order, built) for batch in (1, 4) for built in (False, True) for order in ("ordered", "shuffled")
    ]
    assert {len(row["cpu_seconds"][name]) for row in report.rows for name in (BLOCKS, REPAIR_ALL)} == {4, 1}
    assert [PADDED_BLOCKS in row["cpu_seconds"] for row in report.rows] == [False] * 4 + [True] * 4


def test_needed_tokens_are_those_behind_known_beginnings() -> None:
    """Known beginnings count once, or not at all if they are built; the last token of a row counts each time."""
    rows = [(1, 2, 3, 4, 5), (1, 2, 3, 4, 6), (1, 2, 7, 4, 5), (1, 2, 7, 4, 5)]

    assert num_needed((), rows) == 5 + 1 + 3 + 1
    assert num_needed([(1, 2, 3)], rows) == 2 + 1 + 3 + 1
    assert num_needed(rows, rows) == 4


def _quality_row(way: str, seconds: float, divergence: float | None) -> dict[str, Any]:
    beside = {} if divergence is None else {"plain": {"divergence": {"value": divergence}}}
    return {"set": "facts", "module_tokens": 40, "way": way, "ttft_s": [seconds], "beside": beside}


def test_quality_is_drawn_against_time(tmp_path: Path) -> None:
    """Each set has a curve of its ways, in percent of plain prefill's TTFT and in millinats."""
    rows = (_quality_row("plain", 2.0, None), _quality_row("all", 1.5, 0.0), _quality_row("slots", 0.5, 0.125))
    report = BenchReport(name="quality", title="24 questions", columns=(), cells=(), rows=rows)

    plot_quality(report, tmp_path / "quality.svg", model={"model": "tiny"}, hardware={})

    assert quality_curves(report) == {"facts, 40 tokens": [(75.0, 0.0, "all"), (25.0, 125.0, "slots")]}
    assert (tmp_path / "quality.svg").stat().st_size > 5_000


def test_history_does_not_help_repeated_rounds() -> None:
    """Engines of benchmarks keep no history: a prompt that is measured again is prefilled again."""
    engine = _engine(silent, "demo", None)
    engine.add_schema("schemas/travel.xml")
    asked = '<prompt schema="travel"><miami/>What is the best dish of Miami?</prompt>'

    first, again = (engine.generate(asked, max_new_tokens=1) for _ in range(2))

    assert first.usage.num_new_tokens == again.usage.num_new_tokens > 1
