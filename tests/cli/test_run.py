"""`promptcache run`, with the model that ships in the package."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.conftest import DOCUMENTS, Command

pytestmark = [pytest.mark.usefixtures("folder", "_quiet"), pytest.mark.long]

ON_CPU = ("--device", "cpu", "--max-new-tokens", "3")


@pytest.fixture
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` sets this for its own process; other tests keep theirs."""
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")


@pytest.fixture
def _no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the imports of the model fail."""
    monkeypatch.setitem(sys.modules, "promptcache.engine", None)


def data(result: Result) -> dict[str, object]:
    """The JSON that a command wrote."""
    value = json.loads(result.stdout)
    assert isinstance(value, dict)
    return value


def test_answer_goes_to_stdout_and_usage_to_stderr(command: Command) -> None:
    """The answer is the only text on stdout; one line on stderr has usage and timing."""
    result = command("run", "prompts/miami.xml", *ON_CPU)
    answer = command("run", "prompts/miami.xml", *ON_CPU, "--json")

    assert result.exit_code == 0
    assert result.stdout == f"{data(answer)['text']}\n"
    assert re.fullmatch(
        r"reused \d+ tokens, prefilled \d+ \(\d+ repaired\), generated \d+( \(all that were allowed\))? · "
        r"TTFT \d+\.\d ms · modular · encoded \d+ tokens first\n",
        result.stderr,
    )


def test_json_accounts_for_every_token(command: Command) -> None:
    """Answer, usage, timing and level are one JSON object; tokens that were encoded first are counted separately."""
    answer = data(command("run", "prompts/miami.xml", *ON_CPU, "--json"))

    usage, timing = answer["usage"], answer["timing"]
    assert isinstance(usage, dict)
    assert isinstance(timing, dict)
    assert usage["num_encoded_tokens"] == 0
    assert usage["num_warmed_tokens"] >= usage["num_reused_tokens"] > 0
    assert timing["ttft_s"] > 0
    assert answer["schema"] == {"name": "travel", "file": "travel.xml"}


def test_cold_request_encodes_within_its_clock(command: Command) -> None:
    """With --no-warm the encoding is part of the request, and its usage says so."""
    result = command("run", "prompts/miami.xml", *ON_CPU, "--no-warm")

    assert re.search(r"encoded \d+ tokens within TTFT\n$", result.stderr)


def test_sampling_repeats_with_its_seed(command: Command) -> None:
    """The same seed gives the same sampled answer."""
    words = ("run", "prompts/miami.xml", "--device", "cpu", "--max-new-tokens", "8", "--temperature", "5", "--json")

    first, second, other = (data(command(*words, "--seed", seed))["text"] for seed in ("1", "1", "2"))

    assert first == second != other


def test_answer_has_a_json_schema(command: Command) -> None:
    """The answer is JSON of the schema in a file; one that is not supported is refused before the model is loaded."""
    file = Path("answer.schema.json")
    schema = {"type": "object", "properties": {"days": {"type": "boolean"}}, "required": ["days"]}
    file.write_text(json.dumps({**schema, "additionalProperties": False}))
    result = command("run", "prompts/miami.xml", "--device", "cpu", "--json-schema", str(file))
    assert json.loads(result.stdout)["days"] in (True, False)
    for text, words in (("[", "is not JSON"), ('{"not": {}}', "Unimplemented keys")):
        file.write_text(text)
        refused = command("run", "prompts/miami.xml", "--model", "missing", "--json-schema", str(file))
        assert refused.exit_code == 2
        assert f"--json-schema {file}: " in refused.stderr
        assert words in refused.stderr


def test_argument_is_filled_from_the_command_line(command: Command) -> None:
    """--arg changes the prefilled tokens."""
    plain, longer = (
        data(command("run", "prompts/miami.xml", *ON_CPU, "--json", *words))["usage"]
        for words in ((), ("--arg", "hotel=a"))
    )

    assert isinstance(plain, dict)
    assert isinstance(longer, dict)
    assert longer["num_new_tokens"] != plain["num_new_tokens"]


@pytest.mark.usefixtures("_no_model")
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("prompts/typo.xml",), 1, "error[PC401]"),
        (("prompts/lost.xml",), 1, "no schema called 'nowhere' was found"),
        (("prompts/broken.xml",), 1, "error[PC208]"),
        (("prompts/miami.xml", "--schema", "support.xml"), 1, "error[PC413]"),
        (("prompts/miami.xml", "--arg", "days=" + "very long " * 9), 1, "error[PC501]"),
        (("prompts/miami.xml", "--max-new-tokens", "9999"), 1, "9999 new tokens were asked for"),
        (("prompts/miami.xml", "--arg", "dais=3"), 2, "did you mean 'days'?"),
        (("prompts/miami.xml", "--max-new-tokens", "0"), 2, "max-new-tokens"),
        (("-", "--schema", "-"), 2, "standard input (-) can only be one"),
        (("prompts/gone.xml",), 3, "error[PC010]"),
        (("prompts/miami.xml", "--schema", "gone.xml"), 3, "error[PC010]"),
        (("prompts/miami.xml", "--model", "./nowhere"), 3, "model folder './nowhere' does not exist"),
    ],
)
def test_mistakes_are_told_before_a_model_is_loaded(
    command: Command, words: tuple[str, ...], code: int, message: str
) -> None:
    """Checks that need no model come first; `run` and `render` have one exit code, and leave stdout empty."""
    for name in ("run", "render") if "--max-new-tokens" not in words else ("run",):
        result = command(name, *words, stdin=DOCUMENTS["prompts/miami.xml"])

        assert (result.exit_code, result.stdout) == (code, "")
        assert message in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--device", "cuda:99"), 3, "CUDA devices here"),
        (("--device", "toaster"), 2, "no such kind of device"),
    ],
)
def test_a_missing_device_is_told_in_one_line(
    command: Command, words: tuple[str, ...], code: int, message: str
) -> None:
    """A missing device is reported in one line, with its exit code."""
    result = command("run", "prompts/miami.xml", *words)

    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_standard_input_can_be_the_prompt(command: Command, folder: Path) -> None:
    """A prompt from standard input finds its schema in the working directory."""
    result = command("run", "-", *ON_CPU, stdin=DOCUMENTS["prompts/miami.xml"])

    assert result.exit_code == 0
