"""The benchmark of serving: targets get the same requests, and their figures add up."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from promptcache.bench import serving, targets
from promptcache.bench.load import AnswerTimes, LoadRequest, LoadSizes, ServedRequest, TargetName, draw_requests
from promptcache.bench.serving import LoadRound, LoadSettings, compare_serving, cpu_ratio, load_figures
from promptcache.bench.targets import LoadSetup, Target, load_setup, missing, read_events
from promptcache.cli.app import app
from promptcache.diagnostics import PromptCacheError
from promptcache.engine import Engine
from promptcache.runtime import used_tokens
from promptcache.testing import ByteTokenizer
from promptcache.testing.tiny_model import tiny_model

pytestmark = pytest.mark.long

SIZES = LoadSizes(num_modules=3, module_tokens=20, new_tokens=6, answer_tokens=3)
SMALL = ["--shape", "tiny", "--modules", "2", "--module-tokens", "16", "--new", "4", "--tokens", "3"]
ROUND = ["--clients", "2", "--requests", "2", "--repeats", "1", "--threads", "1"]


@pytest.fixture
def setup(tmp_path: Path) -> LoadSetup:
    """A tiny model whose tokens are bytes."""
    engine = Engine(tiny_model(), ByteTokenizer())
    return load_setup(engine, tmp_path / "none", SIZES, tmp_path, is_sampled=False, seed=0)


def settings(*names: TargetName, repeats: int = 1, loads: tuple[float, ...] = ()) -> LoadSettings:
    return LoadSettings(targets=names, clients=[2], loads=loads, num_requests=2, repeats=repeats, seed=0)


def test_all_targets_get_the_same_text(setup: LoadSetup) -> None:
    """The plain text of a request is the text of the tokens that its prompt puts before the model."""
    for request in draw_requests("0", 20, SIZES, setup.engine.tokenizer.tokenize):
        used = used_tokens(setup.engine.plan(setup.prompt_text(request)).tokens)
        text = setup.engine.tokenizer.detokenize([each.token_id for each in used])
        assert text.removeprefix("<bos>") == setup.plain_text(request)


@pytest.mark.parametrize("name", [TargetName.ONE_AT_A_TIME, TargetName.SCHEDULER])
@pytest.mark.parametrize("is_sampled", [False, True])
def test_engines_answer_with_all_tokens(tmp_path: Path, name: TargetName, is_sampled: bool) -> None:
    """Each answer has the tokens that were asked for, and its first one comes between the call and the end."""
    engine = Engine(tiny_model(), ByteTokenizer())
    made = load_setup(engine, tmp_path, SIZES, tmp_path, is_sampled=is_sampled, seed=0)

    report = compare_serving(made, settings(name, loads=(0.5,)))

    for row in report.rows[1:]:
        assert row["errors"] == ()
        for one in row["rounds"]:
            assert len(one["requests"]) == 2 * row["load"].get("clients", 2)
            assert all(ttft > 0 < token_s and tokens == 3 for ttft, token_s, tokens in one["requests"])
    assert [row["load"] for row in report.rows[1:]] == [{"clients": 1}, {"clients": 2}, {"share": 0.5}]


def test_every_second_round_has_the_opposite_order(setup: LoadSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets are measured in turn with the same requests, first in one order, then in the other; the history is cleared."""
    calls: list[tuple[str, LoadRequest | None]] = []

    @contextmanager
    def fake(_setup: LoadSetup, name: str) -> Iterator[Target]:
        def ask(request: LoadRequest) -> AnswerTimes:
            calls.append((name, request))
            return AnswerTimes(0.0, 3)

        clock = iter(range(1000))
        yield Target(ask, lambda: float(next(clock)), lambda: calls.append((name, None)))

    names = (TargetName.SCHEDULER, TargetName.HTTP)
    monkeypatch.setattr(serving, "TARGETS", {name: lambda given, name=name: fake(given, name) for name in names})
    monkeypatch.setattr(serving, "missing", lambda _name: None)
    compare_serving(setup, settings(*names, repeats=2))

    assert [name for name, request in calls if request is None] == [
        *names,  # to warm up
        *("scheduler", "http", "http", "scheduler"),  # one client
        *("scheduler", "http", "http", "scheduler"),  # two clients
    ]
    texts = [{request.text for name, request in calls if request and name == each} for each in names]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 2 + 2 * (2 + 4)  # no text comes twice


def served(ttft_s: float, error: str | None = None) -> ServedRequest:
    return ServedRequest(due_at=10.0, first_token_at=10.0 + ttft_s, ended_at=11.0 + ttft_s, num_tokens=5, error=error)


def test_figures_are_over_all_rounds() -> None:
    """Rates are sums over sums, requests that failed count as errors only, and a token takes a share of the time after the first."""
    rounds = [
        LoadRound(wall_s=2.0, cpu_s=1.0, served=(served(0.1), served(0.2))),
        LoadRound(wall_s=3.0, cpu_s=0.25, served=(served(0.3), served(9.0, "lost"))),
    ]

    made = load_figures(rounds)

    assert (made.requests_per_s, made.requests_per_cpu_s) == (3 / 5, 3 / 1.25)
    assert (made.tokens_per_s, made.tokens_per_cpu_s) == (15 / 5, 15 / 1.25)
    assert made.ttft_s == pytest.approx((0.2, 0.28, 0.298))
    assert (made.token_s, made.errors) == (pytest.approx(1 / 4), ("lost",))


def test_cpu_ratios_are_of_answered_requests() -> None:
    """A target that needs twice the CPU for each answer has the ratio 2, however many requests a round has."""
    dear = [LoadRound(wall_s=1.0, cpu_s=4.0 * count, served=(served(1.0),) * count) for count in (1, 2, 3)]
    cheap = [LoadRound(wall_s=1.0, cpu_s=4.0, served=(served(1.0), served(1.0))) for _ in range(3)]

    assert cpu_ratio(dear, cheap) == pytest.approx((2.0, 2.0, 2.0))


@pytest.mark.parametrize(
    ("times", "error"),
    [(AnswerTimes(None, 0, "status 500"), "status 500"), (AnswerTimes(1.0, 2), "the answer has 2 tokens, not 3")],
)
def test_a_target_that_answers_nothing_ends_the_benchmark(
    setup: LoadSetup, monkeypatch: pytest.MonkeyPatch, times: AnswerTimes, error: str
) -> None:
    """Without a whole answer there is nothing to measure: the first error is reported."""

    @contextmanager
    def broken(_setup: LoadSetup) -> Iterator[Target]:
        yield Target(lambda _request: times, lambda: 0.0)

    monkeypatch.setattr(serving, "TARGETS", {TargetName.SCHEDULER: broken})
    with pytest.raises(PromptCacheError, match=f"scheduler answers no request: {error}"):
        compare_serving(setup, settings(TargetName.SCHEDULER))


@pytest.mark.parametrize("package", ["accelerate", "openai"])
def test_targets_without_their_packages_are_skipped(
    setup: LoadSetup, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """The report says which package is missing and what brings it, and the other targets are measured."""
    monkeypatch.setattr(targets, "find_spec", lambda name: None if name == package else name)
    assert missing(TargetName.HTTP) is None

    report = compare_serving(setup, settings(TargetName.SCHEDULER, TargetName.TRANSFORMERS))

    reason = f"needs '{package}': pip install 'transformers[serving]'"
    assert report.rows[0]["skipped"] == {"transformers": reason}
    assert report.cells[-1][1:3] == ("transformers", f"not measured: {reason}")
    assert {row["target"] for row in report.rows[1:]} == {"scheduler"}


def _event(**data: Any) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False).encode() + b"\n"


def test_the_first_token_of_a_stream_is_its_first_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunk that opens an answer has no text, and a line separator inside of a text ends no line."""
    clock = iter([1.0, 2.0])
    monkeypatch.setattr(targets, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    lines = [
        _event(choices=[{"delta": {"role": "assistant", "content": ""}}]),
        b"\n",
        b": keep-alive\n",
        _event(choices=[{"delta": {"content": "a\u2028b"}}]),
        _event(choices=[{"delta": {"content": "c"}}]),
        _event(choices=[], usage={"completion_tokens": 7}),
        b"data: [DONE]\n",
    ]

    assert read_events(lines) == AnswerTimes(1.0, 7)


def test_an_error_ends_a_stream() -> None:
    """An event with an error is the error of its request."""
    times = read_events([_event(choices=[{"text": ""}]), _event(error={"message": "no"})])

    assert (times.first_token_at, times.error) == (None, "{'message': 'no'}")


def _measured(*words: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(app, ["bench", "serve", *SMALL, *ROUND, *words, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["rows"][1:]


def test_a_request_cannot_use_more_modules_than_there_are() -> None:
    """It is refused before a model is made."""
    result = CliRunner().invoke(app, ["bench", "serve", *SMALL, "--used", "3"])

    assert (result.exit_code, "--used 3: a schema has 2 modules" in result.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.process
def test_servers_are_measured_by_the_cpu_time_of_their_process() -> None:
    """A server in a process of its own answers what the scheduler answers, and its CPU time is its own."""
    rows = _measured("--target", "scheduler", "--target", "http", "--load", "0.5")

    assert [(row["load"].get("clients"), row["target"]) for row in rows] == [
        (clients, target) for clients in (1, 2, None) for target in ("scheduler", "http")
    ]
    assert all(row["errors"] == [] and row["cpu_s"] >= 0 < row["tokens_per_s"] for row in rows)
    compared = [row["cpu_ratio"] and row["cpu_ratio"]["over"] for row in rows if row["target"] == "http"]
    assert compared == ["scheduler", "scheduler", None]  # at a share of its own capacity, a target has another rate


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'promptcache[ray]'")
def test_ray_serve_answers_the_same_requests() -> None:
    """The CPU time of Ray is that of all of its processes, and it is compared with the server without Ray."""
    rows = _measured("--target", "http", "--target", "ray", "--threads", str(os.cpu_count()))

    assert all(row["errors"] == [] for row in rows)
    assert [row["cpu_ratio"] and row["cpu_ratio"]["over"] for row in rows] == [None, "http", None, "http"]
    assert all(row["cpu_s"] > 0 for row in rows if row["target"] == "ray")


@pytest.mark.slow
@pytest.mark.skipif(missing(TargetName.TRANSFORMERS) is not None, reason=str(missing(TargetName.TRANSFORMERS)))
@pytest.mark.parametrize("sampled", [(), ("--sampled",)], ids=["greedy", "sampled"])
def test_transformers_serve_answers_the_same_requests(sampled: tuple[str, ...]) -> None:
    """Both settings of `transformers serve` answer with all tokens, although the tokenizer has an end token."""
    rows = _measured("--target", "transformers", "--target", "transformers-batches", *sampled)

    assert {row["target"] for row in rows} == {"transformers", "transformers-batches"}
    assert all(row["errors"] == [] for row in rows)
    assert {each[2] for row in rows for one in row["rounds"] for each in one["requests"]} == {3}
