"""Each benchmark of this repository runs, and writes what it measured."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from benchmarks.__main__ import command
from benchmarks.combinations import LENGTHS
from benchmarks.load import TargetName
from benchmarks.shapes import SHAPES, random_shape
from benchmarks.targets import missing

SMALL = ["--shape", "tiny", "--modules", "2", "--module-tokens", "8"]
LOAD = [*SMALL, "--new", "4", "--tokens", "3", "--clients", "2", "--requests", "2", "--repeats", "1"]


def measured(*words: str) -> list[dict[str, Any]]:
    """Run a benchmark, and return the rows of its report: all that it writes is one line of JSON."""
    result = CliRunner().invoke(command, [*words, "--json"])
    assert result.exit_code == 0, result.output
    assert (result.stdout.count("\n"), result.stderr) == (1, "")
    data = json.loads(result.stdout)
    assert data["hardware"]["torch"] == torch.__version__
    rows: list[dict[str, Any]] = data["rows"]
    return rows


@pytest.mark.slow
def test_combinations_are_measured() -> None:
    """Equal and uneven modules have 4,096 tokens in all, and a ratio for each run."""
    rows = measured("combinations", "--shape", "tiny", "--repeats", "1")

    assert [(row["modules"], row["new_tokens"]) for row in rows] == [
        ("equal", 1),
        ("equal", 16),
        ("uneven", 1),
        ("uneven", 16),
    ]
    for row in rows:
        assert len(row["seconds"]["prompt cache"]) == len(row["seconds"]["floor"]) > 0
    assert {sum(lengths) for lengths in LENGTHS.values()} == {4096}


@pytest.mark.slow
def test_the_path_of_a_request_is_counted() -> None:
    """It begins with the call, and ends before the first token is sampled."""
    (row,) = measured("path")

    assert row["names"][0] == "engine.py:Engine.generate"
    assert "rows/batch.py:Batch.step" in row["names"]
    assert {"Plan", "Request", "Row"} <= {*row["records"]}
    assert row["functions"] == len(row["names"])


@pytest.mark.slow
def test_caches_of_prefixes_reach_the_same_logits() -> None:
    """Every alternative gives the logits of every question, in each order, batch size, and built or not."""
    sizes = ["--subjects", "2", "--questions", "2", "--prefix-tokens", "40", "--new", "10"]

    rows = measured("prefixes", "--shape", "tiny", "--dtype", "float64", *sizes)

    assert max(row["distance"] for row in rows) < 1e-12
    assert len(rows) == 8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_contenders_on_a_gpu_are_measured() -> None:
    """Without a GPU, every contender runs on the CPU."""
    rows = measured("gpu", *SMALL, "--new", "3", "--clients", "2", "--tokens", "3", "--repeats", "1")

    assert [(row["what"], row.get("rows", 1)) for row in rows] == [
        *[("ttft", 1)] * 4,
        *[("decode", 1)] * 4,
        *[("decode", 2)] * 4,
        *[("clients", 2)] * 3,
    ]
    assert all(min(row["seconds"]) > 0 for row in rows)


def serving(*words: str) -> list[dict[str, Any]]:
    """Measure targets; each answers every request with all tokens."""
    rows = measured("serve", *LOAD, *words)[1:]
    assert all(row["errors"] == [] for row in rows)
    assert {each[2] for row in rows for one in row["rounds"] for each in one["requests"]} == {3}
    return rows


def test_targets_in_this_process_are_measured() -> None:
    """The scheduler and one request at a time answer the same load, in closed and open loops."""
    rows = serving("--target", "one-at-a-time", "--target", "scheduler", "--load", "0.5")

    assert [row["load"] for row in rows[::2]] == [{"clients": 1}, {"clients": 2}, {"share": 0.5}]
    assert [row["cpu_ratio"] and row["cpu_ratio"]["over"] for row in rows[:2]] == ["scheduler", None]


@pytest.mark.slow
def test_servers_are_measured_by_the_cpu_time_of_their_process() -> None:
    """A server in a process of its own answers what the scheduler answers."""
    rows = serving("--target", "scheduler", "--target", "http", "--threads", "1")

    assert {row["target"] for row in rows if row["cpu_s"] > 0} >= {"http"}


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'promptcache[ray]'")
def test_ray_serve_answers_the_same_requests() -> None:
    """The CPU time of Ray is that of all of its processes."""
    assert all(row["cpu_s"] > 0 for row in serving("--target", "ray", "--threads", str(os.cpu_count())))


@pytest.mark.slow
@pytest.mark.skipif(missing(TargetName.TRANSFORMERS) is not None, reason=str(missing(TargetName.TRANSFORMERS)))
def test_transformers_serve_answers_the_same_requests() -> None:
    """Both settings of `transformers serve` answer with all tokens, although the tokenizer has an end token."""
    serving("--target", "transformers", "--target", "transformers-batches", "--threads", "1")


def test_a_request_cannot_use_more_modules_than_there_are() -> None:
    """It is refused before a model is made."""
    result = CliRunner().invoke(command, ["serve", *LOAD, "--used", "3"])

    assert (result.exit_code, "--used 3: a schema has 2 modules" in result.stderr) == (2, True)


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_are_configurations(shape: str) -> None:
    """Every named shape can be built; on the meta device, so nothing is allocated."""
    assert random_shape(shape, torch.bfloat16, torch.device("meta")).dtype == torch.bfloat16


def test_a_saved_shape_is_a_model_for_users(tmp_path: Path) -> None:
    """`promptcache bench` measures the model that `shape` saves."""
    from promptcache.cli.app import app

    saved = CliRunner().invoke(command, ["shape", "tiny", str(tmp_path / "model")])
    words = ["--modules", "2", "--module-tokens", "8", "--tokens", "2", "--repeats", "1"]
    result = CliRunner().invoke(app, ["bench", "decode", "--model", str(tmp_path / "model"), *words])

    assert (saved.exit_code, result.exit_code) == (0, 0), saved.output + result.output


MEASURED: dict[str, tuple[str, Callable[[list[dict[str, Any]]], object], object]] = {
    "disk": (
        "--shape tiny --modules 2 --module-tokens 8 --new 1 --repeats 2",
        lambda rows: {name: len(each) for name, each in rows[0]["seconds"].items()},
        {"plain prefill": 2, "disk": 2, "memory": 2},
    ),
    "memory": (
        "--shape tiny --modules 2 --module-tokens 8 --requests 2",
        lambda rows: {name: len(each) for name, each in rows[0]["make_seconds"].items()},
        {"prompt cache": 2, "DynamicCache": 2},
    ),
    "chat": (
        "--shape tiny --chats 1 --turns 2 --modules 1 --module-tokens 8",
        lambda rows: [len(turn) for turn in rows[0]["turns"]],
        [2, 2],
    ),
    "quality": (
        "--set facts --count 1 --repeats 1",
        lambda rows: ([row["way"] for row in rows][:2], {row["asked"] for row in rows}),
        (["plain", "previous"], {1}),
    ),
    "retrieval": (
        "--documents 50 --questions 2 --dtype float64",
        lambda rows: [row["questions"] for row in rows],
        [2, 2, 2],
    ),
}


@pytest.mark.parametrize("name", MEASURED)
def test_each_side_is_measured(name: str) -> None:
    """Every benchmark has as many runs of each side as were asked for."""
    words, found, expected = MEASURED[name]

    assert found(measured(name, *words.split())) == expected
