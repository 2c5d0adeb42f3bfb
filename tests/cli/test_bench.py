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
        (["quality", "--set", "fact"], 2, "Invalid value for '--set'"),
        (["quality", "--way", "first"], 2, "no way 'first'; there are guaranteed"),
        (["quality", "--module-tokens", "100"], 2, "Invalid value for '--module-tokens'"),
        (["prompt", "gone.xml", "--schema", "travel.xml"], 3, "PC010"),
        (["prompt", "prompts/typo.xml", "--schema", "travel.xml"], 1, "PC401"),
        (["prompt", "prompts/miami.xml", "--schema", "broken.xml"], 1, "PC208"),
        (["prompt", "prompts/miami.xml", "--schema", "support.xml"], 1, "PC413"),
        (["prompt", "-", "--schema", "-"], 2, "standard input (-) can only be one of the documents"),
    ],
)
def test_sizes_and_subjects_that_do_not_exist_are_told(
    command: Command, folder: Path, words: list[str], code: int, message: str
) -> None:
    """Values that cannot be measured are refused with a reason before the first measurement."""
    result = command("bench", *words)

    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr


@pytest.mark.parametrize(("prompt", "schema"), [("-", "travel.xml"), ("prompts/miami.xml", "-")])
def test_a_prompt_or_its_schema_may_come_from_standard_input(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, prompt: str, schema: str
) -> None:
    """`-` is a document as for all commands: `bench prompt` measures the prompt that it holds."""
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    piped = folder / ("prompts/miami.xml" if prompt == "-" else "travel.xml")

    result = command("bench", "prompt", prompt, "--schema", schema, "--repeats", "1", "--json", stdin=piped.read_text())

    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["rows"]
    assert row["reused_tokens"] > 0 < row["new_tokens"]


def test_shapes_are_in_the_help(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name that --shape takes is listed by --help."""
    monkeypatch.setenv("COLUMNS", "300")

    help_text = command("bench", "ttft", "--help").stdout

    assert f"--shape [{'|'.join(SHAPES)}]" in help_text


def test_errors_are_json_under_json(command: Command, folder: Path) -> None:
    """With --json a refusal is JSON, with the same exit code."""
    result = command("bench", "prompt", "prompts/typo.xml", "--schema", "travel.xml", "--json")

    assert (result.exit_code, result.stderr) == (1, "")
    assert [each["code"] for each in json.loads(result.stdout)["diagnostics"]] == ["PC401"]
