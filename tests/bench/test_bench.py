"""The benchmarks measure what they say: every alternative computes the same request."""

from __future__ import annotations

import json
import math
import re
from itertools import combinations
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from matplotlib.figure import Figure
from transformers import CompileConfig

from promptcache.bench import alternatives, comparisons, harness
from promptcache.bench.alternatives import (
    ALTERNATIVES,
    COMPILED,
    compiled,
    decoding,
    decoding_compiled,
    decoding_concatenated,
    why_not_compiled,
)
from promptcache.bench.harness import BenchReport, Fresh, interleave
from promptcache.bench.plot import keep_apart, panels, plot
from promptcache.bench.shapes import SHAPES, random_shape, random_weights
from promptcache.bench.workload import Sizes, workload
from promptcache.cli.app import app
from promptcache.cli.bench import BenchModel
from promptcache.diagnostics import PromptCacheError
from promptcache.runtime.hf.model import Model
from promptcache.runtime.hf.packed import PackedLinear, _is_usable

pytestmark = pytest.mark.long

SIZES = Sizes(num_modules=3, module_tokens=20, new_tokens=4)


@pytest.fixture(scope="module")
def model() -> Model:
    """A tiny shape in float64."""
    return Model(random_shape("tiny", torch.float64, torch.device("cpu")))


@pytest.mark.parametrize("name", ["concatenate", "deep copy", "link", "floor"])
def test_alternatives_reach_the_same_token(model: Model, name: str) -> None:
    """Every way of reusing the same KV ends in the same logits."""
    work = workload(model, SIZES)

    assert torch.allclose(ALTERNATIVES[name](model, work)(), ALTERNATIVES["prompt cache"](model, work)(), atol=1e-10)


@pytest.mark.parametrize("backend", [None, "eager"])
def test_a_static_cache_gives_the_same_logits(
    model: Model, backend: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `StaticCache` that is used again and again ends in the logits of the other alternatives. The whole pass can be
    compiled: nothing of it falls back to Python.
    """
    if backend is None:
        monkeypatch.setattr(type(model.hf), "get_compiled_call", lambda hf, _config: hf.__call__)
    else:
        config = CompileConfig(backend=backend, mode=None, fullgraph=True)
        monkeypatch.setattr(model.hf.generation_config, "compile_config", config)
    work = workload(model, SIZES)

    first, decoded = compiled(model, work), decoding_compiled(model, work, 3)

    for _ in range(2):
        assert torch.allclose(first(), ALTERNATIVES["concatenate"](model, work)(), atol=1e-10)
        assert torch.allclose(decoded(), decoding_concatenated(model, work, 3)(), atol=1e-10)


def test_plain_prefill_feeds_as_many_tokens(model: Model) -> None:
    """Plain prefill computes all tokens of the request: those that are reused and those that are new."""
    tokens = workload(model, SIZES).tokens

    assert sum(part.num_tokens for part in tokens.parts) == SIZES.cached_tokens
    assert len(tokens.token_ids) == len(tokens.position_ids) == SIZES.new_tokens


def test_modules_lie_apart_unless_adjacent(model: Model) -> None:
    """Present modules have an absent one between them, unless neighbours are asked for."""
    apart, adjacent = (
        workload(model, Sizes(num_modules=3, module_tokens=20, new_tokens=4, adjacent=flag)) for flag in (False, True)
    )

    assert [work.state.layout.stop for work in (apart, adjacent)] == [6 * 20, 3 * 20]
    assert [work.tokens.position_ids[0] for work in (apart, adjacent)] == [3 * 20, 3 * 20]


def test_uneven_modules_are_as_many_tokens_and_all_different(model: Model) -> None:
    """Whether lengths are even or not, the request reuses as many tokens; no two present modules have one length."""
    sizes = Sizes(num_modules=4, module_tokens=64, new_tokens=4, uneven=True)

    tokens = workload(model, sizes).tokens

    lengths = [part.num_tokens for part in tokens.parts]
    assert (sum(lengths), len(set(lengths))) == (sizes.cached_tokens, 4)


def _interleaved(monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], repeats: int) -> tuple[str, list[int]]:
    """Interleave works that take so long by a fake clock; return the order of the calls, and how many count."""
    calls: list[str] = []
    monkeypatch.setattr(harness.time, "perf_counter", lambda: sum(seconds[name] for name in calls))

    samples = interleave({name: lambda name=name: calls.append(name) for name in seconds}, repeats, torch.device("cpu"))

    assert {name: set(each.seconds) for name, each in samples.items()} == {name: {seconds[name]} for name in seconds}
    return "".join(calls), [len(each.seconds) for each in samples.values()]


def test_interleaved_runs_are_counted_without_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every alternative runs once more than is counted, in turn."""
    assert _interleaved(monkeypatch, {"a": 1, "b": 2}, 3) == ("abababab", [3, 3])


def test_what_is_much_faster_than_the_slowest_is_run_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five times in each round, each turn in an order of its own, so that none always follows the same one."""
    calls, counted = _interleaved(monkeypatch, {"a": 1, "b": 100, "c": 2}, 2)

    assert counted == [10, 2, 10]
    assert calls.startswith("abcb")
    turns = [turn[place : place + 2] for turn in calls[3:].split("b") for place in range(0, len(turn), 2)]
    assert (len(turns), set(turns)) == (10, {"ac", "ca"})


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_are_configurations(shape: str) -> None:
    """Every named shape can be built; on the meta device, so nothing is allocated."""
    built = random_shape(shape, torch.bfloat16, torch.device("meta"))

    assert built.dtype == torch.bfloat16


_TINY = ["--shape", "tiny", "--modules", "2", "--module-tokens", "8"]


@pytest.mark.parametrize(
    "words",
    [
        ["ttft", *_TINY, "--new", "1", "--uneven", "--repeats", "1"],
        ["decode", *_TINY, "--tokens", "2", "--repeats", "1"],
    ],
    ids=lambda words: words[0],
)
def test_commands_write_one_line_of_json(words: list[str]) -> None:
    """With --json, one line of JSON with every run in it is all that a benchmark writes."""
    result = CliRunner().invoke(app, ["bench", *words, "--json"])

    assert result.exit_code == 0, result.output
    assert (result.stdout.count("\n"), result.stderr) == (1, "")
    data = json.loads(result.stdout)
    assert data["rows"]
    assert data["hardware"]["torch"] == torch.__version__
    assert data["device"] == "cpu"


@pytest.mark.parametrize("what", ["ttft", "decode"])
def test_static_caches_are_measured_if_asked_for(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, `--static` adds the compiled pass. If nothing compiles here, the command says so before it measures."""
    monkeypatch.setattr(alternatives, "compiled_forward", lambda model: model.hf)
    words = ["bench", what, *_TINY, "--repeats", "1", *(["--tokens", "2"] if what == "decode" else ["--new", "1"])]
    reasons = iter([None, "torch.compile does not work here: no compiler"])
    monkeypatch.setattr(alternatives, "why_not_compiled", lambda _model: next(reasons))

    plain, static, refused = (
        CliRunner().invoke(app, [*words, *more]) for more in (["--json"], ["--json", "--static"], ["--static"])
    )

    seconds = [json.loads(result.stdout)["rows"][0]["seconds"] for result in (plain, static)]
    assert {*seconds[1]} - {*seconds[0]} == {COMPILED}
    assert refused.exit_code != 0
    assert "--static: torch.compile does not work here: no compiler" in " ".join(refused.stderr.split())


def test_windows_are_not_measured_with_static_caches() -> None:
    """A `StaticCache` drops what leaves a window, so that it cannot go back to the state before a request."""
    model = Model(
        random_weights("MistralConfig", {**SHAPES["tiny"][1], "sliding_window": 8}, torch.float32, torch.device("cpu"))
    )

    reason = why_not_compiled(model)

    assert reason is not None
    assert "sliding windows" in reason


@pytest.mark.parametrize(("pack", "expected"), [("auto", False), ("all", True), ("none", False)])
def test_layers_are_packed_as_asked(pack: str, expected: bool, tmp_path: Path) -> None:
    """`--pack` decides for a shape and for an engine; the report has it. Layers of a tiny model do not pay in float32."""
    if not _is_usable(torch.float32):
        pytest.skip("no packed kernels on this processor")
    chosen = BenchModel(
        shape="tiny", model=None, dtype="float32", device="cpu", threads=None, pack=pack, progress=lambda *_: None
    )

    for model in (chosen.load(), chosen.load_engine(tmp_path)[0].model):
        assert any(isinstance(each, PackedLinear) for each in model.hf.modules()) == expected
    result = CliRunner().invoke(
        app, ["bench", "decode", *_TINY, "--tokens", "2", "--repeats", "1", "--pack", pack, "--json"]
    )
    assert json.loads(result.stdout)["pack"] == pack


def test_servers_pack_by_themselves() -> None:
    """`--pack` is refused for targets that load the model in a process of their own."""
    result = CliRunner().invoke(app, ["bench", "serve", "--shape", "tiny", "--target", "http", "--pack", "none"])

    assert result.exit_code == 2
    assert "servers decide for themselves" in result.output


def test_people_read_a_table() -> None:
    """Without --json there is a table, and no data behind it."""
    result = CliRunner().invoke(app, ["bench", "decode", *_TINY, "--tokens", "2", "--repeats", "1"])

    assert result.exit_code == 0, result.output
    assert "ms for one decoded token" in result.stdout
    assert "{" not in result.stdout


def test_progress_counts_the_rounds_of_each_size(model: Model) -> None:
    """Before each round, progress gets the size, the rounds that are done, and the number of all rounds."""
    told: list[tuple[str, int, int | None]] = []

    comparisons.compare_decoding(model, [SIZES], 2, 1, lambda *each: told.append(each))

    assert told == [("3 x 20 tokens, 4 new", done, 3) for done in range(3)]


def test_plots_have_a_curve_for_every_alternative(tmp_path: Path) -> None:
    """Medians by size for each alternative, in a panel for each other setting; the file is what its name says."""
    pytest.importorskip("matplotlib")
    rows = [
        {"cached_tokens": cached, "new_tokens": new, "seconds": {"a": [0.3, cached / 1e3, 9.0], "b": [new / 1e3]}}
        for cached in (100, 400)
        for new in (1, 2)
    ]
    report = BenchReport(name="ttft", title="t", columns=(), cells=(), rows=tuple(rows))

    found = panels(report, "cached_tokens")
    plot(
        report,
        tmp_path / "p.svg",
        model={"model": "tiny", "device": "cpu"},
        hardware={"processor": "Fast", "threads": 2},
    )

    assert found["1 new tokens"]["a"] == ((100, 300.0), (400, 400.0))
    assert {setting: set(curves) for setting, curves in found.items()} == {f"{n} new tokens": set("ab") for n in (1, 2)}
    drawn = (tmp_path / "p.svg").read_text(encoding="utf-8")
    assert drawn.startswith("<?xml")
    assert re.findall(r'id="xtick_(\d+)"', drawn) == [
        "1",
        "2",
        "3",
        "4",
    ]  # the sizes that were measured, in both panels


def test_settings_that_follow_the_axis_split_no_curve() -> None:
    """Longer modules are more cached tokens: one curve for each alternative, where there was one for every point."""
    rows = [{"cached_tokens": 8 * each, "module_tokens": each, "seconds": {"a": [each / 1e3]}} for each in (64, 128)]
    report = BenchReport(name="ttft", title="t", columns=(), cells=(), rows=tuple(rows))

    assert panels(report, "cached_tokens") == {"": {"a": ((512, 64.0), (1024, 128.0))}}


def test_nothing_to_plot_is_said() -> None:
    """Without a size that varies a plot has no axis."""
    report = BenchReport(
        name="ttft", title="t", columns=(), cells=(), rows=({"new_tokens": 1, "seconds": {"a": [1.0]}},)
    )

    with pytest.raises(PromptCacheError, match="needs a size that varies"):
        plot(report, Path("p.svg"), model={}, hardware={})


def test_nothing_to_plot_is_said_before_anything_is_measured(tmp_path: Path) -> None:
    """A drawing without an axis is refused before anything is measured."""
    result = CliRunner().invoke(
        app, ["bench", "ttft", "--new", "1", "--shape", "tiny", "--plot", str(tmp_path / "p.svg")]
    )

    assert (result.exit_code, result.stdout) == (2, "")
    assert "needs an option given several times: --module-tokens or --new" in result.stderr


def test_only_the_run_of_a_fresh_alternative_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`prepare` makes new state for every run, outside of the clock."""
    now, made = [0.0], []
    monkeypatch.setattr(harness.time, "perf_counter", lambda: now[0])

    def pass_time(seconds: float) -> object:
        now[0] += seconds
        return object()

    fresh = Fresh(lambda: pass_time(100.0), lambda state: (made.append(state), pass_time(1.0)))
    samples = interleave({"fresh": fresh}, 2, torch.device("cpu"))

    assert samples["fresh"].seconds == (1.0, 1.0)
    assert len(set(made)) == 3


def test_decoding_goes_on_where_it_stood(model: Model) -> None:
    """Each measured round of decoding starts from the same state: the rounds give the same logits."""
    work = workload(model, SIZES)

    linked, copied = decoding(model, work, 3), decoding_concatenated(model, work, 3)
    for run in (linked, copied):
        assert torch.allclose(run(), run(), atol=1e-12)
    assert torch.allclose(linked(), copied(), atol=1e-10)


def test_labels_of_points_do_not_overlap() -> None:
    """However close the points are, each label is beside its point, and covers no other one."""
    figure = Figure(figsize=(6, 4))
    axes = figure.subplots()
    axes.set(xlim=(-50, 50), ylim=(-50, 50))
    points = [(0, 0), (0, 0), (0, 0), (0, 0), (1, 0), (0, 2), (4, 1), (5, 5)]
    labels = [axes.annotate("first-16", point, (1, 1), textcoords="offset points", size="xx-small") for point in points]

    keep_apart(figure, axes, labels)

    boxes = [label.get_window_extent() for label in labels]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert all(math.hypot(*label.get_position()) < 60 for label in labels)
