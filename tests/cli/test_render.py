"""`promptcache render`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from promptcache.cli.render import print_text, render_prompt
from promptcache.cli.sources import Sources
from tests.cli.conftest import Command

pytestmark = pytest.mark.usefixtures("folder")

TEXT = (
    "<|begin|><|system|>\nYou plan trips.\n3 days.\nThe beach. any<|end|>\n<|user|>\nPlan it.<|end|>\n<|assistant|>\n"
)


def test_text_is_exact_and_alone_on_stdout(command: Command) -> None:
    """On a pipe stdout is the text that the model sees, and not a character more."""
    result = command("render", "prompts/miami.xml")

    assert (result.exit_code, result.stdout) == (0, TEXT)


def test_counts_go_to_stderr(command: Command) -> None:
    """One line on stderr gives the reused and the new tokens, and those that are computed again."""
    data = json.loads(command("render", "prompts/miami.xml", "--json").stdout)
    reused, new, again = data["num_reused_tokens"], data["num_new_tokens"], data["num_repaired_tokens"]

    assert command("render", "prompts/miami.xml").stderr == (
        f"{reused + new} tokens: {reused} reused, {new} new ({again} repaired) · modular · the answer starts at "
        f"position {data['next_position']}\n"
    )


def test_json_has_the_text_in_parts(command: Command) -> None:
    """The parts of the JSON are the text, and each says whose it is."""
    data = json.loads(command("render", "prompts/miami.xml", "--json").stdout)

    assert data["text"] == "".join(part["text"] for part in data["parts"]) == TEXT
    assert [(part["module"], part["parameter"], part["origin"]) for part in data["parts"] if part["parameter"]] == [
        ("plan", "days", "argument")
    ]
    assert sum(part["num_tokens"] for part in data["parts"] if part["reused"]) == data["num_reused_tokens"]
    assert "tokens" not in data


def test_json_has_every_token_if_asked_for(command: Command) -> None:
    """With --tokens the JSON has each token with its position, in order."""
    data = json.loads(command("render", "prompts/miami.xml", "--json", "--tokens").stdout)

    positions = [token["position"] for token in data["tokens"]]
    assert positions == sorted(set(positions))
    assert len(positions) == data["num_reused_tokens"] + data["num_new_tokens"]
    assert data["next_position"] == positions[-1] + 1


def test_tokens_have_a_line_each(command: Command) -> None:
    """--tokens prints position, token, text, and whether and whence it is reused."""
    lines = command("render", "prompts/miami.xml", "--tokens").stdout.splitlines()

    assert lines[0].split() == ["position", "token", "id", "text", "KV", "from"]
    assert lines[1].split() == ["0", "1", "'<|begin|>'", "reused", "(root)"]
    assert any(line.endswith("new: argument  plan.days") for line in lines)
    assert lines[-1].endswith("new: header    prompt")


def test_terminal_gets_colours_and_nothing_that_steers_it(folder: Path) -> None:
    """On a terminal reused and new text differ in colour, and control characters of an argument are replaced."""
    (folder / "odd.xml").write_text('<prompt schema="travel"><plan days="&#155;2J"/><miami/></prompt>')
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system="standard", width=80)

    print_text(render_prompt("odd.xml", (), (), "demo", Sources()), console)

    assert "\x9b" not in screen.getvalue()
    assert "\x1b[1;33m\N{REPLACEMENT CHARACTER}2J\x1b[0m\x1b[1;33m days.\x1b[0m" in screen.getvalue()
