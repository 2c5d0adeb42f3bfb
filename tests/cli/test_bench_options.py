"""Options of `promptcache bench` that nothing can be measured with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command

TINY = ["--shape", "tiny", "--modules", "2", "--module-tokens", "8", "--repeats", "1"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["ttft", "--shape", "tinny"], 2, "--shape tinny: there is no such shape; did you mean 'tiny'?"),
        (["ttft", "--shape", ""], 2, "there is no such shape; known are "),
        (["decode", *TINY, "--dtype", "int32"], 2, "--dtype int32: float32, bfloat16, float16 and float64 are known"),
        (["decode", *TINY, "--dtype", "nn"], 2, "--dtype nn: float32, "),
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
        (["small", "--shape", "tiny", "--cached", "9" * 12], 1, "positions are needed"),
        (["plan", "--modules", "9" * 12], 2, "Invalid value for '--modules'"),
        (["plan", "--modules", "5", "--modules", "six"], 2, "Invalid value for '--modules'"),
        (["ttft", "--plot", "a.txt"], 2, "'a.txt' is no .svg, .png or .pdf file."),
        (["ttft", "--plot", "nowhere/a.svg"], 2, "there is no folder 'nowhere'."),
        (["ttft", "--plot", "prompts"], 2, "Invalid value for '--plot'"),
        (["quality", "--set", "fact"], 2, "Invalid value for '--set'"),
        (["prompt", "gone.xml", "--schema", "travel.xml"], 3, "PC010"),
        (["prompt", "prompts/typo.xml", "--schema", "travel.xml"], 1, "PC401"),
        (["prompt", "prompts/miami.xml", "--schema", "broken.xml"], 1, "PC208"),
        (["disk", *TINY, "--folder", "nowhere"], 3, "No such file or directory"),
        (["disk", *TINY, "--folder", "travel.xml"], 3, "Not a directory"),
    ],
)
def test_sizes_and_subjects_that_do_not_exist_are_told(
    command: Command, folder: Path, words: list[str], code: int, message: str
) -> None:
    """What cannot be measured ends at once with a reason, before anything was measured."""
    result = command("bench", *words)

    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
