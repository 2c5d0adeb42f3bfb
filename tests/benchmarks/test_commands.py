"""Options of `python -m benchmarks` that nothing can be measured with, and its documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from benchmarks.__main__ import command
from tests.cli.conftest import write_documents

pytestmark = pytest.mark.long


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the documents of the tests of commands."""
    write_documents(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(command, list(words), input=stdin)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["quality", "--set", "fact"], 2, "Invalid value for '--set'"),
        (["retrieval", "--found", "0"], 2, "Invalid value for '--found'"),
        (["idle", "--used", "9"], 2, "--used 9: a schema has 8 modules"),
        (["quality", "--way", "first"], 2, "no way 'first'; there are guaranteed"),
        (["quality", "--module-tokens", "100"], 2, "Invalid value for '--module-tokens'"),
        (["prompt", "gone.xml", "--schema", "travel.xml"], 3, "PC010"),
        (["prompt", "prompts/typo.xml", "--schema", "travel.xml"], 1, "PC401"),
        (["prompt", "prompts/miami.xml", "--schema", "broken.xml"], 1, "PC208"),
        (["prompt", "prompts/miami.xml", "--schema", "support.xml"], 1, "PC413"),
        (["prompt", "-", "--schema", "-"], 2, "standard input (-) can only be one of the documents"),
    ],
)
def test_sizes_and_subjects_that_do_not_exist_are_told(folder: Path, words: list[str], code: int, message: str) -> None:
    """Values that cannot be measured are refused with a reason before the first measurement."""
    result = run(*words)

    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr


@pytest.mark.parametrize(("prompt", "schema"), [("-", "travel.xml"), ("prompts/miami.xml", "-")])
def test_a_prompt_or_its_schema_may_come_from_standard_input(
    folder: Path, monkeypatch: pytest.MonkeyPatch, prompt: str, schema: str
) -> None:
    """`-` is a document as for all commands: `prompt` measures the prompt that it holds."""
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    piped = folder / ("prompts/miami.xml" if prompt == "-" else "travel.xml")

    result = run("prompt", prompt, "--schema", schema, "--repeats", "1", "--json", stdin=piped.read_text())

    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)["rows"]
    assert row["reused_tokens"] > 0 < row["new_tokens"]


def test_errors_are_json_under_json(folder: Path) -> None:
    """With --json a refusal is JSON, with the same exit code."""
    result = run("prompt", "prompts/typo.xml", "--schema", "travel.xml", "--json")

    assert (result.exit_code, result.stderr) == (1, "")
    assert [each["code"] for each in json.loads(result.stdout)["diagnostics"]] == ["PC401"]
