"""The benchmarks measure what they say: every alternative computes the same request."""

import json

import pytest
import torch
from click.testing import CliRunner

from promptcache.bench.alternatives import first_token, further_tokens
from promptcache.bench.request import PlannedRequest, RequestSizes, plan_request
from promptcache.cli.app import app
from promptcache.model import Model
from promptcache.testing.tiny_model import tiny_model

SIZES = RequestSizes(modules=3, module_tokens=20, new_tokens=4)
SMALL = ["--modules", "2", "--module-tokens", "8", "--repeats", "1"]


@pytest.fixture(scope="module")
def model() -> Model:
    """A tiny model in float64."""
    return tiny_model()


@pytest.fixture(scope="module")
def request_(model: Model) -> PlannedRequest:
    """A planned request with its KV."""
    return plan_request(model, SIZES)


def test_alternatives_reach_the_same_token(model: Model, request_: PlannedRequest) -> None:
    """Every way of reusing the same KV ends in the same logits, time after time; ordinary prefill has other KV."""
    found = first_token(model, request_)
    expected = found["prompt cache"]()

    assert [*found] == [
        *("ordinary prefill", "concatenate", "deep copy"),
        *("prompt cache", "first use", "in place", "floor"),
    ]
    for name in [*found, *found]:
        assert torch.allclose(found[name](), expected, atol=1e-10) == (name != "ordinary prefill")


def test_decoding_goes_on_where_it_stood(model: Model, request_: PlannedRequest) -> None:
    """Each measured round of decoding starts from the same state: both sides give the same logits in each round."""
    copied, linked = further_tokens(model, request_, 3).values()

    for _ in range(2):
        assert torch.allclose(linked(), copied(), atol=1e-10)


def test_a_request_has_its_sizes(request_: PlannedRequest) -> None:
    """The request reuses every second module of the schema, and has the new tokens behind them."""
    tokens = request_.tokens

    assert [part.num_tokens for part in tokens.parts] == [20, 20, 20]
    assert tokens.position_ids == (60, 61, 62, 63)


@pytest.mark.parametrize("words", [["ttft", "--new", "1", "--new", "4"], ["decode", "--tokens", "2"]])
def test_json_has_every_run(words: list[str]) -> None:
    """With --json, every run and the machine are all that a benchmark writes."""
    result = CliRunner().invoke(app, ["bench", *words, *SMALL, "--pack", "none", "--json"])

    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    data = json.loads(result.stdout)
    assert [data[name] for name in ("bench", "model", "dtype", "device", "pack")] == [
        *(words[0], "demo", "float32", "cpu", "none"),
    ]
    assert data["hardware"]["torch"] == torch.__version__
    assert len(data["rows"]) == words.count("--new") or words[0] == "decode"
    assert all(seconds > 0 for row in data["rows"] for each in row["seconds"].values() for seconds in each)


def test_people_read_a_table() -> None:
    """Without --json there is a table with the ratio of both sides."""
    result = CliRunner().invoke(app, ["bench", "decode", *SMALL, "--tokens", "2"])

    assert result.exit_code == 0, result.output
    assert "ms for one decoded token, median of 1 rounds" in result.stdout
    assert "{" not in result.stdout
