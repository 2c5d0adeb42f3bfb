"""Options of `promptcache bench` that nothing can be measured with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command

pytestmark = pytest.mark.long

TINY = ["--modules", "2", "--module-tokens", "8", "--repeats", "1"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
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
    ],
)
def test_sizes_and_subjects_that_do_not_exist_are_told(
    command: Command, folder: Path, words: list[str], code: int, message: str
) -> None:
    """Values that cannot be measured are refused with a reason before the first measurement."""
    result = command("bench", *words)

    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr


def test_errors_are_json_under_json(command: Command, folder: Path) -> None:
    """With --json a refusal is JSON, with the same exit code."""
    result = command("bench", "decode", *TINY, "--device", "gpu", "--json")

    assert (result.exit_code, result.stderr) == (2, "")
    assert json.loads(result.stdout)["error"].startswith("--device gpu: no such kind of device")
