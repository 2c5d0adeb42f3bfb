"""`promptcache run` with the model that ships in the package, arguments of `--arg`, and tools of `run` and `chat`."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from promptcache.cli import settings
from promptcache.cli.exits import UsageMistake
from promptcache.cli.request import with_arguments
from promptcache.demo import MODEL_FOLDER
from promptcache.language import parse_prompt, resolve_prompt
from promptcache.retrieval import tool_member
from tests.cli.conftest import DOCUMENTS, Command, data
from tests.engine.calling import HERMES, TOOLS
from tests.language.documents import checked

pytestmark = pytest.mark.usefixtures("folder")

ON_CPU = ("--device", "cpu", "--max-new-tokens", "3")


def test_answer_goes_to_stdout_and_usage_to_stderr(command: Command) -> None:
    """The answer is the only text on stdout; one line on stderr has usage and timing, as --json has them."""
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


SCHEMA = checked("""<schema name="s"><parameter name="tone" length="9"/>
  <module name="files"><module name="unit.py"><parameter name="lines" length="9"/></module></module>
  <module name="plan"><parameter name="days" length="9"/><parameter name="note" length="9"/></module>
  <module name="car"><parameter name="days" length="9"/></module>
  <union default="by"><module name="by"><parameter name="via" length="9"/></module></union>
  <collection name="notes"><module name="wifi">On the door.</module></collection>
</schema>""")


def filled(inside: str, *words: str) -> dict[str, str]:
    """The arguments of a prompt after `--arg words`."""
    prompt = with_arguments(parse_prompt(f'<prompt schema="s">{inside}</prompt>'), SCHEMA, words)
    return {f"{each.module}.{each.parameter}": each.text for each in resolve_prompt(prompt, SCHEMA).arguments}


FILLED: dict[str, tuple[str, list[str], dict[str, str]]] = {
    "a unique name is enough": ("<plan/>", ["days=3"], {"plan.days": "3"}),
    "that of the prompt": ('<plan days="3" note="n"/>', ["days=4"], {"plan.days": "4", "plan.note": "n"}),
    "the last one counts": ("<plan/>", ["days=3", "plan.days=4"], {"plan.days": "4"}),
    "a path": ("<plan/><car/>", ["/car.days=1"], {"car.days": "1"}),
    "dots": ("<files><unit.py/></files>", ["files/unit.py.lines=3"], {"files/unit.py.lines": "3"}),
    "of the schema": ("", ["tone=dry"], {".tone": "dry"}),
    "a default of a union": ("<plan/>", ["via=Rome"], {"by.via": "Rome"}),
    "a member": ("<plan/><notes><wifi/></notes>", ["days=3"], {"plan.days": "3"}),
    "a member in use": ('<plan/><use module="/notes/wifi"/>', ["days=3"], {"plan.days": "3"}),
    "a value is data": ("<plan/>", ["note= a=b <c> "], {"plan.note": " a=b <c> "}),
}


@pytest.mark.parametrize(("inside", "words", "expected"), FILLED.values(), ids=FILLED)
def test_arguments_are_filled(inside: str, words: list[str], expected: dict[str, str]) -> None:
    """An argument goes to the parameter that its name or path means, and takes the place of the prompt's own."""
    assert filled(inside, *words) == expected


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("dais=3", "no module of this prompt has it; did you mean 'days'"),
        ("days=3", "several modules have it; write plan.days or car.days"),
        ("zzz=3", "parameters here: tone, plan.days, plan.note, car.days, by.via"),
        ("lines=3", "no module of this prompt has it"),
        ("days", "write NAME=VALUE"),
    ],
)
def test_what_cannot_be_filled_is_told(word: str, message: str) -> None:
    """A name that means nothing, or too much, is a mistake of usage with a way out."""
    with pytest.raises(UsageMistake, match=message):
        filled("<plan/><car/>", word)


def test_faults_of_the_prompt_come_first() -> None:
    """A prompt that names unknown modules is not changed, so that its own diagnostics are reported."""
    for inside in ("<plam/>", "<notes><wifi><plan/></wifi></notes>"):
        prompt = parse_prompt(f'<prompt schema="s">{inside}</prompt>')

        assert with_arguments(prompt, SCHEMA, ["days=3"]) is prompt


@pytest.fixture
def _calling(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose template writes tools, and a prompt whose schema defines one. The answers have to be calls of it."""
    shutil.copytree(MODEL_FOLDER, folder / "model", ignore=shutil.ignore_patterns("*.md"))
    (folder / "model" / "chat_template.jinja").write_text(HERMES)
    system = f"<system>Call <![CDATA[{tool_member(TOOLS[0])[1]}]]></system>"
    (folder / "agent.xml").write_text(f'<schema name="agent">{system}</schema>')
    (folder / "prompts" / "oslo.xml").write_text('<prompt schema="agent"><user>How warm is it in Oslo?</user></prompt>')

    def forced(given: Mapping[str, Any]) -> dict[str, Any]:
        return {**given, "tool_choice": "weather", "max_new_tokens": 60}

    monkeypatch.setattr(settings, "with_sampling", forced)


OF_MODEL = ("--model", "model", "--device", "cpu")


@pytest.mark.usefixtures("_calling")
def test_run_prints_calls(command: Command) -> None:
    """A call of a tool that the schema defines is a line of its name and arguments, and part of --json."""
    result = command("run", "prompts/oslo.xml", *OF_MODEL)
    made = json.loads(command("run", "prompts/oslo.xml", *OF_MODEL, "--json").stdout)

    assert (result.exit_code, result.stderr.count("\n")) == (0, 1)
    name, arguments = result.stdout.removeprefix("call ").split(" ", 1)
    assert (name, json.loads(arguments)) in (("weather", {"city": city}) for city in ("Oslo", "Rome"))
    assert made["tool_calls"] == [{"name": name, "arguments": arguments.strip()}]
    assert made["text"] == ""


@pytest.mark.usefixtures("_calling")
def test_chat_asks_for_results(command: Command) -> None:
    """The entry behind a call is its result; commands work in between, and /rewind forgets the call."""
    Path("tools.json").write_text(json.dumps(TOOLS))
    entered = "How warm?\n\n/usage\n7 degrees\n/rewind\n8 degrees\n/save chat.json\n"
    result = command("chat", *OF_MODEL, "--tools", "tools.json", stdin=entered)
    turns = json.loads(Path("chat.json").read_text())["turns"]

    assert (result.exit_code, result.stdout.count("call weather ")) == (0, 3)
    assert [(each["question"], each["results"]) for each in turns] == [("How warm?", []), ("", ["8 degrees"])]
    again = command(
        "chat", *OF_MODEL, "--tools", "tools.json", "--load", "chat.json", stdin="9 degrees\n/save two.json\n"
    )
    assert again.exit_code == 0, again.stderr
    assert [each["results"] for each in json.loads(Path("two.json").read_text())["turns"]][2:] == [["9 degrees"]]
