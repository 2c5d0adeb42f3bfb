"""Options of `promptcache bench` that nothing can be measured with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from promptcache.bench.shapes import SHAPES
from tests.cli.conftest import Command

pytestmark = pytest.mark.long

TINY = ["--shape", "tiny", "--modules", "2", "--module-tokens", "8", "--repeats", "1"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["ttft", "--shape", "tinny"], 2, "'tinny' is not one of 'tiny', 'mha-42m', 'qwen2.5-0.5b'"),
        (["ttft", "--shape", ""], 2, "'' is not one of 'tiny', "),
        (["decode", *TINY, "--dtype", "int32"], 2, "'int32' is not one of 'float32', 'bfloat16', 'float16', 'float64'"),
        (["decode", *TINY, "--device", "gpu"], 2, "--device gpu: no such kind of device"),
        (["decode", *TINY, "--device", "meta"], 2, "--device meta: it holds no numbers"),
        (["decode", *TINY, "--device", "xpu"], 3, "--device xpu: "),
        (["decode", *TINY, "--model", "no/such/folder"], 3, "no/such/folder"),
        (["decode", *TINY, "--threads", "9" * 20], 2, "Invalid value for '--threads'"),
        (["decode", *TINY, "--modules", "0"], 2, "Invalid value for '--modules'"),
        (["decode", *TINY, "--modules", "-3"], 2, "Invalid value for '--modules'"),
        (
            ["decode", *TINY, "--modules", "9" * 12],
            1,
            "positions are needed: give smaller numbers of modules and tokens",
        ),
        (["decode", "--modules", "six"], 2, "Invalid value for '--modules'"),
        (["ttft", "--plot", "a.txt"], 2, "'a.txt' is no .svg, .png or .pdf file."),
        (["ttft", "--plot", "nowhere/a.svg"], 2, "there is no folder 'nowhere'."),
        (["ttft", "--plot", "prompts"], 2, "Invalid value for '--plot'"),
    ],
)
def test_sizes_and_subjects_that_do_not_exist_are_told(
    command: Command, folder: Path, words: list[str], code: int, message: str
) -> None:
    """Values that cannot be measured are refused with a reason before the first measurement."""
    result = command("bench", *words)

    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr


def test_shapes_are_in_the_help(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name that --shape takes is listed by --help."""
    monkeypatch.setenv("COLUMNS", "300")

    help_text = command("bench", "ttft", "--help").stdout

    assert f"--shape [{'|'.join(SHAPES)}]" in help_text


def test_errors_are_json_under_json(command: Command, folder: Path) -> None:
    """With --json a refusal is JSON, with the same exit code."""
    result = command("bench", "decode", *TINY, "--device", "gpu", "--json")

    assert (result.exit_code, result.stderr) == (2, "")
    assert json.loads(result.stdout)["error"].startswith("--device gpu: no such kind of device")
