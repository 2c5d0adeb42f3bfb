"""Tools on the command line: `run` prints calls, and `chat` asks for their results."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from promptcache.cli import settings
from promptcache.demo import MODEL_FOLDER
from promptcache.retrieval import tool_member
from tests.cli.conftest import Command
from tests.engine.calling import HERMES, TOOLS

pytestmark = pytest.mark.usefixtures("folder")


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


ON_CPU = ("--model", "model", "--device", "cpu")


@pytest.mark.usefixtures("_calling")
def test_run_prints_calls(command: Command) -> None:
    """A call of a tool that the schema defines is a line of its name and arguments, and part of --json."""
    result = command("run", "prompts/oslo.xml", *ON_CPU)
    made = json.loads(command("run", "prompts/oslo.xml", *ON_CPU, "--json").stdout)

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
    result = command("chat", *ON_CPU, "--tools", "tools.json", stdin=entered)
    turns = json.loads(Path("chat.json").read_text())["turns"]

    assert (result.exit_code, result.stdout.count("call weather ")) == (0, 3)
    assert [(each["question"], each["results"]) for each in turns] == [("How warm?", []), ("", ["8 degrees"])]
    again = command(
        "chat", *ON_CPU, "--tools", "tools.json", "--load", "chat.json", stdin="9 degrees\n/save two.json\n"
    )
    assert again.exit_code == 0, again.stderr
    assert [each["results"] for each in json.loads(Path("two.json").read_text())["turns"]][2:] == [["9 degrees"]]
