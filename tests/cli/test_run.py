"""`promptcache run`, with the model that ships in the package."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import DOCUMENTS, Command, data

pytestmark = pytest.mark.usefixtures("folder")

ON_CPU = ("--device", "cpu", "--max-new-tokens", "3")


def test_answer_goes_to_stdout_and_usage_to_stderr(command: Command) -> None:
    """The answer is the only text on stdout; one line on stderr has usage and timing, as --json has them.

    Tokens that were encoded first are counted separately; with --no-warm encoding is part of the request.
    """
    result = command("run", "prompts/miami.xml", *ON_CPU)
    answer = data(command("run", "-", *ON_CPU, "--json", stdin=DOCUMENTS["prompts/miami.xml"]))
    cold = command("run", "prompts/miami.xml", *ON_CPU, "--no-warm")
    longer = data(command("run", "prompts/miami.xml", *ON_CPU, "--json", "--arg", "hotel=a"))
    usage = answer["usage"]

    assert (result.exit_code, result.stdout) == (0, f"{answer['text']}\n")
    assert re.fullmatch(
        r"reused \d+ tokens, prefilled \d+ \(\d+ repaired\), generated \d+ at [\d,]+\.\d tokens/s( \(all that were allowed\))? · "
        r"TTFT \d+\.\d ms · modular · encoded \d+ tokens first\n",
        result.stderr,
    )
    assert usage["num_encoded_tokens"] == 0
    assert usage["num_warmed_tokens"] >= usage["num_reused_tokens"] > 0
    assert answer["timing"]["ttft_s"] > 0
    assert answer["schema"] == {"name": "travel", "file": "travel.xml"}
    assert re.search(r"encoded \d+ tokens within TTFT\n$", cold.stderr)
    assert longer["usage"]["num_new_tokens"] != usage["num_new_tokens"]


def test_a_question_needs_no_prompt_file(command: Command, folder: Path) -> None:
    """--use names modules of --schema, or of the only schema here; the answer is that of the prompt."""
    asked = ("run", "Plan it.", "--use", "plan", "--use", "/miami", "--arg", "days=3", "--max-new-tokens", "3")

    answer = command("run", "prompts/miami.xml", "--max-new-tokens", "3").stdout
    assert command(*asked, "--schema", "travel.xml").stdout == answer
    several = command(*asked)
    assert (several.exit_code, "--schema FILE" in several.stderr) == (2, True)
    for name in ("support.xml", "broken.xml", "dead.xml"):
        (folder / name).unlink()
    assert command(*asked).stdout == answer
    wrong = command("run", "Plan it.", "--use", "miam", "--schema", "travel.xml")
    assert (wrong.exit_code, "did you mean 'miami'?" in wrong.stderr) == (1, True)


def test_sampling_repeats_with_its_seed(command: Command) -> None:
    """The same seed gives the same sampled answer."""
    words = ("run", "prompts/miami.xml", "--device", "cpu", "--max-new-tokens", "8", "--temperature", "5", "--json")

    first, second, other = (data(command(*words, "--seed", seed))["text"] for seed in ("1", "1", "2"))

    assert first == second != other


def test_answer_has_a_json_schema(command: Command) -> None:
    """The answer is JSON of the schema in a file."""
    schema = {"type": "object", "properties": {"days": {"type": "boolean"}}, "required": ["days"]}
    Path("answer.schema.json").write_text(json.dumps({**schema, "additionalProperties": False}))
    result = command("run", "prompts/miami.xml", "--device", "cpu", "--json-schema", "answer.schema.json")
    assert json.loads(result.stdout)["days"] in (True, False)


def test_settings_of_later_answers_are_no_options(command: Command) -> None:
    """`run` gives one answer, so history and promotion have no effect; `chat` has them."""
    for word in ("--promote", "--no-history"):
        assert word not in command("run", "--help").stdout
        assert word in command("chat", "--help").stdout
