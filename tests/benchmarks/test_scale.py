"""`python -m benchmarks scale`: its table says that it is simulated, and real replicas have the simulated hit rates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import command
from benchmarks.fleet import POLICIES

PAGE = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
COSTS = PAGE.partition("```json\n")[2].partition("```")[0]
SMALL = ["--replicas", "1", "--replicas", "3", "--requests", "20", "--schemas", "3"]


@pytest.fixture
def costs(tmp_path: Path) -> str:
    """The file of costs that the page shows."""
    path = tmp_path / "costs.json"
    path.write_text(COSTS, encoding="utf-8")
    return str(path)


def _bench(*words: str) -> str:
    result = CliRunner().invoke(command, ["scale", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def _rows(*words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(_bench(*words, "--json"))["rows"]
    return rows


def test_each_number_of_replicas_is_simulated_under_each_policy(costs: str) -> None:
    """There is a row for each number and policy, which says that it is simulated and from which costs."""
    rows = _rows("--costs", costs, *SMALL)

    assert [(row["replicas"], row["balancer"]) for row in rows] == [(num, name) for num in (1, 3) for name in POLICIES]
    assert all(row["simulated"] is True and row["costs"] == json.loads(COSTS) for row in rows)
    assert "SIMULATED, not measured" in _bench("--costs", costs, *SMALL)


def test_one_seed_gives_one_table(costs: str) -> None:
    """The same options give the same output, and another seed another one."""
    assert _rows("--costs", costs, *SMALL) == _rows("--costs", costs, *SMALL)
    assert _rows("--costs", costs, *SMALL) != _rows("--costs", costs, *SMALL, "--seed", "1")


@pytest.mark.parametrize(
    ("words", "text", "code", "message"),
    [
        (["--used", "9"], COSTS, 2, "--used 9: a schema has 8 modules"),
        (["--check"], COSTS, 2, "--check measures the costs"),
        (["--busy", "nan"], COSTS, 2, "--busy nan: not a finite number"),
        ([], "{", 2, "the costs are not JSON"),
        ([], '{"step_s": 1}', 2, "the costs are a JSON object with request_s, "),
        ([], COSTS.replace("0.03", "-1"), 2, "step_s=-1: a number of 0 or more is expected"),
        ([], COSTS.replace("0.03", "0"), 2, "step_s and token_bytes are more than 0"),
        ([], None, 3, "No such file"),
    ],
)
def test_wrong_sizes_and_costs_are_refused(
    tmp_path: Path, words: list[str], text: str | None, code: int, message: str
) -> None:
    """What cannot be simulated is refused with a reason."""
    path = tmp_path / "costs.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")

    result = CliRunner().invoke(command, ["scale", "--costs", str(path), *words])

    assert (result.exit_code, message in result.stderr) == (code, True), result.stderr


@pytest.mark.slow
@pytest.mark.process
def test_real_replicas_have_the_simulated_hit_rate() -> None:
    """One and two real replicas find as many modules in memory as simulated ones, at a load that leaves them idle often."""
    rows = _rows("--check", "--threads", "1", "--schemas", "4", "--requests", "40", "--tokens", "8", "--busy", "0.2")

    assert [row["replicas"] for row in rows] == [1, 2]
    for row in rows:
        assert row["measured"]["hits, %"] == pytest.approx(row["simulated"]["hits, %"], abs=5)
        assert 30 < row["measured"]["hits, %"] < 99
        assert min(*row["measured"].values(), *row["simulated"].values()) > 0
