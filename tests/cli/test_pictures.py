"""`promptcache layout` with pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from promptcache.cli.layout import view_layout
from promptcache.cli.prompt_lengths import PromptLength
from promptcache.language import Repair, count_combinations
from promptcache.layout import make_plan, run_states
from promptcache.tokenizer import Dtype, ModelFacts
from tests.cli.conftest import Command, data
from tests.fakes import ByteTokenizer
from tests.layout.samples import plan_of

LENGTHS = PromptLength(num_tokens=1, exact=True), PromptLength(num_tokens=9, exact=True)


@pytest.mark.usefixtures("folder")
def test_a_prompt_is_shown_in_the_tree(command: Command) -> None:
    """The tree marks reused, new and absent parts in words, without colour; pictures are written beside the same tree.

    With --json every node has the tokens that are reused and new there, and they add up to those of the prompt.
    """
    words = ("layout", "travel.xml", "--prompt", "prompts/miami.xml")
    result = command(*words, "--svg", "travel.svg", "--html", "travel.html")
    used, plain = data(command(*words, "--json")), data(command("layout", "travel.xml", "--json"))

    svg = Path("travel.svg").read_text(encoding="utf-8")
    assert (svg[:4], "reused" in svg) == ("<svg", True)
    assert "<title>travel: layout</title>" in Path("travel.html").read_text(encoding="utf-8")
    lines = {line.strip("├─└│ ").partition("  ")[0]: line for line in result.stdout.splitlines()}
    assert (result.exit_code, result.stdout) == (0, command(*words).stdout)
    assert "\x1b" not in result.stdout
    assert lines["slot days"].endswith("1 new")
    assert "reused" in lines["miami"]
    assert " · absent" in lines["paris"]
    assert any(line.startswith("prompt: ") and "the answer starts at position" in line for line in lines.values())
    prompt = used["prompt"]
    added = prompt["next_position"] - prompt["start"]
    assert sum(node["num_new_tokens"] for node in modules(used["nodes"])) + added == prompt["num_new_tokens"]
    assert plain["prompt"] is None
    assert {node["num_new_tokens"] for node in modules(plain["nodes"])} == {None}


@pytest.mark.parametrize("repair", ["none", "slots", "first-2", "all"])
@pytest.mark.parametrize(
    "modules", ['<a p="1234"/><c/>', '<a p="1"/><c/>', "<a/><b/><c/>", "<c/>", '<a p=""/>', '<a p="1"/><d/>']
)
def test_tokens_are_counted_where_they_belong(modules: str, repair: str) -> None:
    """Tokens of a node are those of its own text and slots, also if boundary tokens are at positions of others."""
    schema = (
        '<schema name="s" separator=""><module name="a">Text <parameter name="p" length="4" default="two"/></module>'
        '<module name="b">of b</module><module name="c">next</module><module name="d" cache="false">last</module></schema>'
    )
    plan = plan_of(schema, f'<prompt schema="s">{modules}Go.</prompt>')
    layout, states = plan.layout, run_states(plan.layout)
    plan = make_plan(plan.selection, layout, states, ByteTokenizer(), Repair.parse(repair))
    facts = ModelFacts(name="bytes", dtype=Dtype.FLOAT32, token_bytes=10, max_positions=None)

    view = view_layout(layout, states, facts, count_combinations(layout.schema.rules), LENGTHS, plan)

    assert view.prompt is not None
    added, bos = view.prompt.next_position - view.prompt.start, 1
    nodes = [node for node in view.nodes if node.kind == "module"]
    assert sum(node.num_new_tokens or 0 for node in nodes) + added == plan.num_new_tokens
    assert sum(node.num_reused_tokens or 0 for node in nodes) + bos == plan.num_reused_tokens
    assert all(node.num_new_tokens == 0 for node in nodes if "absent" in node.marks)


def modules(nodes: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """All modules and turns of a tree."""
    for node in nodes:
        yield from [node] if node["kind"] in ("module", "turn") else ()
        yield from modules(node["children"])
