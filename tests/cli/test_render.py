"""`promptcache render`."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from promptcache.cli.documents import Sources
from promptcache.cli.render import print_text
from promptcache.cli.request import TokenLimits, read_request
from promptcache.layout import piece_texts
from tests.cli.conftest import Command, data

pytestmark = pytest.mark.usefixtures("folder")

TEXT = (
    "<|begin|><|system|>\nYou plan trips.\n3 days.\nThe beach. any<|end|>\n<|user|>\nPlan it.<|end|>\n<|assistant|>\n"
)


def test_tokens_have_a_line_each(command: Command) -> None:
    """--tokens prints position, token, text, and whether and whence it is reused, and so does the JSON, in order."""
    found = data(command("render", "prompts/miami.xml", "--json", "--tokens"))
    lines = command("render", "prompts/miami.xml", "--tokens").stdout.splitlines()

    positions = [token["position"] for token in found["tokens"]]
    assert positions == sorted(set(positions))
    assert len(positions) == found["num_reused_tokens"] + found["num_new_tokens"] == len(lines) - 1
    assert found["next_position"] == positions[-1] + 1
    assert lines[0].split() == ["position", "token", "id", "text", "KV", "from"]
    assert lines[1].split() == ["0", "1", "'<|begin|>'", "reused", "(root)"]
    assert any(line.endswith("new: argument  plan.days") for line in lines)
    assert lines[-1].endswith("new: header    prompt")


def test_terminal_gets_colours_and_nothing_that_steers_it(folder: Path) -> None:
    """On a terminal reused and new text differ in colour, and control characters of an argument are replaced."""
    (folder / "odd.xml").write_text('<prompt schema="travel"><plan days="&#155;2J"/><miami/></prompt>')
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system="standard", width=80)

    limits = TokenLimits.of("demo")
    plan = limits.plan_request(read_request("odd.xml", (), (), Sources()))
    parts = piece_texts(plan, limits.tokenizer)
    print_text("".join(parts), zip(plan.pieces, parts, strict=True), console)

    assert "\x9b" not in screen.getvalue()
    assert "\x1b[1;33m\N{REPLACEMENT CHARACTER}2J\x1b[0m\x1b[1;33m days.\x1b[0m" in screen.getvalue()


def test_text_is_exact_and_alone_on_stdout(command: Command) -> None:
    """On a pipe stdout is the text that the model sees, and stderr a line of counts; JSON says whose each part is."""
    result = command("render", "prompts/miami.xml")
    found = data(command("render", "prompts/miami.xml", "--json"))
    reused, new, again = found["num_reused_tokens"], found["num_new_tokens"], found["num_repaired_tokens"]

    assert (result.exit_code, result.stdout) == (0, TEXT)
    assert result.stderr == (
        f"{reused + new} tokens: {reused} reused, {new} new ({again} repaired) · modular · the answer starts at "
        f"position {found['next_position']}\n"
    )
    assert found["text"] == "".join(part["text"] for part in found["parts"]) == TEXT
    assert [(part["module"], part["parameter"], part["origin"]) for part in found["parts"] if part["parameter"]] == [
        ("plan", "days", "argument")
    ]
    assert sum(part["num_tokens"] for part in found["parts"] if part["reused"]) == reused
    assert "tokens" not in found
