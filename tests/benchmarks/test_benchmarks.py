"""Each benchmark of this repository runs, and writes what it measured."""

import json
import os
import sys
from collections import Counter
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


LLAMA_SERVER = """#!{}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.do_GET()
        number = asked["max_tokens"] * all(type(each) is int for each in asked["prompt"])
        for each in {{"text": "x"}}, {{"text": ""}}:
            event = {{"choices": [each], "usage": {{"completion_tokens": number}}}}
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\\n")
HTTPServer(("", int(sys.argv[-1])), Handler).serve_forever()
"""


def test_llama_cpp_gets_the_tokens_of_each_request(tmp_path: Path) -> None:
    """Its server answers requests with the tokens of their modules."""
    (server := tmp_path / "llama-server").write_text(LLAMA_SERVER.format(sys.executable))
    server.chmod(0o755)

    assert len(serving("--target", "llama-server", "--llama-server", str(server), "--gguf", str(server))) == 2


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


Rows = list[dict[str, Any]]
MEASURED: dict[str, tuple[str, Callable[[Rows], object], object]] = {
    "disk": (
        "--shape tiny --modules 2 --module-tokens 8 --new 1 --repeats 2",
        lambda rows: {name: len(each) for name, each in rows[0]["seconds"].items()},
        {"ordinary prefill": 2, "disk": 2, "memory": 2},
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
    "pairs": (
        "--words 4 --repeats 2",
        lambda rows: [(row["bound"], len(row["seconds"]), len(row["other_seconds"])) for row in rows],
        [(1.25, 2, 2), (1.1, 2, 2)],
    ),
    "quality": (
        "--set facts --count 1 --repeats 1",
        lambda rows: ([row["way"] for row in rows][:2], {row["asked"] for row in rows}),
        (["plain", "first-16"], {1}),
    ),
    "retrieval": (
        "--documents 50 --questions 2 --dtype float64",
        lambda rows: [row["questions"] for row in rows],
        [2, 2, 2],
    ),
}
SLOW: dict[str, tuple[str, Callable[[Rows], object], object]] = {
    "first": (  # two processes
        "--words 4 --repeats 1",
        lambda rows: ([row["stage"] for row in rows][:3], len(rows), all(row["seconds"][0] > 0 for row in rows)),
        (["python", "import", "load"], 10, True),
    ),
    "combinations": (  # 4,096 tokens in equal and uneven modules
        "--shape tiny --repeats 1",
        lambda rows: ([(row["modules"], row["new_tokens"]) for row in rows], {*map(sum, LENGTHS.values())}),
        ([(kind, number) for kind in ("equal", "uneven") for number in (1, 16)], {4096}),
    ),
    "path": (  # from the call to the first sampled token
        "",
        lambda rows: (
            rows[0]["names"][0],
            rows[0]["functions"] - len(rows[0]["names"]),
            {"Plan", "Row"} <= {*rows[0]["records"]},
        ),
        ("engine.py:Engine.generate", 0, True),
    ),
    "prefixes": (  # every alternative gives the logits of every question
        "--shape tiny --dtype float64 --subjects 2 --questions 2 --prefix-tokens 40 --new 10",
        lambda rows: (len(rows), max(row["distance"] for row in rows) < 1e-12),
        (8, True),
    ),
    "gpu": (  # without a GPU, every contender runs on the CPU
        "--shape tiny --modules 2 --module-tokens 8 --new 3 --clients 2 --tokens 3 --repeats 1",
        lambda rows: Counter((row["what"], row.get("rows", 1)) for row in rows if min(row["seconds"]) > 0),
        {("ttft", 1): 4, ("decode", 1): 4, ("decode", 2): 4, ("clients", 2): 3},
    ),
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("name", [*MEASURED, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_each_side_is_measured(name: str) -> None:
    """Every benchmark has as many runs of each side as were asked for."""
    words, found, expected = {**MEASURED, **SLOW}[name]

    assert found(measured(name, *words.split())) == expected


def test_llama_cpp_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is no dependency; the error says how to install it."""
    (gguf := tmp_path / "model.gguf").touch()
    monkeypatch.setitem(sys.modules, "llama_cpp", None)

    result = CliRunner().invoke(
        command, ["llama", "--model", "demo", "--dtype", "float32", "--gguf", str(gguf), "--module-tokens", "8"]
    )

    assert result.exit_code == 1
    assert "pip install llama-cpp-python" in result.output
