"""`promptcache layout`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from promptcache.cli.console import stdout
from promptcache.cli.layout import LayoutView, print_layout, view_layout
from promptcache.cli.prompt_lengths import prompt_lengths
from promptcache.language import check_schema, count_combinations, parse_schema
from promptcache.layout import lay_out, run_states
from promptcache.testing.byte_tokenizer import ByteTokenizer
from promptcache.tokenizer import Dtype, ModelFacts
from tests.cli.conftest import Command

SCHEMA = """\
<schema name="trip">
  <system>Be brief.</system>
  <module name="plan"><parameter name="days" length="8" default="two"/> days<module name="car">By car.</module></module>
  <union name="city" default="rome">
    <module name="rome" reserve="14">Rome</module>
    <module name="miami" cache="false">Miami</module>
  </union>
  <scaffold name="both" modules="plan rome"/>
  <user>Go.</user>
</schema>
"""


def view(text: str = SCHEMA) -> LayoutView:
    """A schema as it is shown under the byte tokenizer, ten bytes of KV per token."""
    layout = lay_out(check_schema(parse_schema(text)), ByteTokenizer())
    facts = ModelFacts(name="bytes", dtype=Dtype.FLOAT32, token_bytes=10, max_positions=100)
    return view_layout(
        layout,
        run_states(layout),
        facts,
        count_combinations(layout.schema.rules),
        prompt_lengths(layout, ByteTokenizer()),
    )


def nodes(data: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """All nodes of a tree."""
    for node in data:
        yield node
        yield from nodes(node["children"])


def test_tree_shows_positions_costs_and_visibility(capsys: pytest.CaptureFixture[str]) -> None:
    """The tree shows every part with its positions, and a module with its tokens, bytes and context."""
    print_layout(view(), stdout())

    assert capsys.readouterr().out.splitlines() == [
        "trip  positions [0, 51) · bytes, KV in float32, 10 B per token",
        "├── <system>  [1, 12) 11 tokens",
        "├── plan  [12, 33) 8 tokens · 80 B · sees (root)",
        "│   ├── slot days  [12, 20) 8 positions · default 'two'",
        '│   ├── "days"  [20, 25) 5 tokens',
        "│   └── plan/car  [25, 33) 8 tokens · 80 B · sees (root), plan",
        "├── union city  [33, 47) · exactly one · default rome",
        "│   ├── rome  [33, 47) 5 tokens · 50 B · sees (root)",
        "│   └── miami  [33, 39) 6 tokens · not cached",
        "└── <user>  [47, 51) 4 tokens · open",
        "(root), all text outside modules: 16 tokens · 160 B",
        "scaffold both: plan + rome · 5 tokens once more · 50 B",
        "to be encoded: 42 tokens in 7 encodings · 420 B, 50 B of it once more in other contexts",
        "valid combinations of modules: 6",
        "prompts without text of their own: 21 to 43 tokens",
        "all modules: 51 of 100 positions, slots whole",
    ]


def test_long_lines_are_whole_where_no_terminal_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Output to a pipe is neither wrapped nor cut."""
    name = "m" * 200
    print_layout(
        view(f'<schema name="s"><module name="{name}" required="true">a</module><module name="n">b</module></schema>'),
        stdout(),
    )

    assert f"sees {name}\n" in capsys.readouterr().out


def test_tokens_and_bytes_add_up() -> None:
    """Encodings are those of the text outside modules, of cached modules, and of scaffolds."""
    shown = view()
    data = asdict(shown)
    modules = [node for node in nodes(data["nodes"]) if node["kind"] == "module"]
    cached = sum(node["num_tokens"] for node in modules if "not cached" not in node["marks"])

    assert shown.num_tokens == shown.root.num_tokens + cached + sum(each.num_tokens for each in shown.scaffolds)
    assert shown.kv_bytes == 10 * shown.num_tokens


def test_a_changed_schema_says_what_is_encoded_again(command: Command, folder: Path) -> None:
    """A longer text and a new module are encoded; a removed module is not used any more; nothing else changes."""
    modules = {"a": "One.", "b": "Two.", "c": "Three."}

    def write(name: str, texts: dict[str, str]) -> None:
        inside = "".join(f'<module name="{module}">{text}</module>' for module, text in texts.items())
        (folder / name).write_text(f'<schema name="s">Root.{inside}</schema>')

    write("old.xml", modules)
    write("new.xml", {"a": "One.", "b": "Two and more.", "d": "Four."})

    same = json.loads(command("layout", "old.xml", "--against", "old.xml", "--json").stdout)["against"]
    data = json.loads(command("layout", "new.xml", "--against", "old.xml", "--json").stdout)
    text = command("layout", "new.xml", "--against", "old.xml").stdout

    assert (same["num_dropped"], same["needed"]) == (0, [])
    found = data["against"]
    assert {(each["module"], each["is_new"]) for each in found["needed"]} == {("b", False), ("d", True)}
    assert found["num_dropped"] == 2
    assert found["num_kept"] == same["num_kept"] - 2
    assert found["kv_bytes"] == sum(each["num_tokens"] for each in found["needed"]) * data["model"]["token_bytes"]
    assert "encoded again" in text
    assert "positions [" not in text


def test_lengths_of_prompts_are_exact_where_all_can_be_tried() -> None:
    """The shortest prompt leaves out what it may; the longest has the longer city and a full slot."""
    shown = view()
    root = shown.root.num_tokens

    assert (shown.shortest.num_tokens, shown.shortest.exact) == (root + len("\nRome"), True)
    assert shown.longest.num_tokens == root + 8 + len(" days\nBy car.\nMiami")


def test_lengths_of_slots_with_patterns_are_estimates() -> None:
    """No text is made for a pattern: its slot counts as one token, or whole; choices and numbers are exact."""
    slot = '<schema name="s">a<parameter name="p" length="6" required="true" {}/></schema>'
    lengths = {
        kind: [(each.num_tokens, each.exact) for each in (shown.shortest, shown.longest)]
        for kind in (
            'pattern="[ab]{3}"',
            'pattern="[ab]{3}" default="aba"',
            'type="choice" choices="a|bcd"',
            'type="int"',
        )
        for shown in [view(slot.format(kind).replace('required="true" pattern="[ab]{3}" d', 'pattern="[ab]{3}" d'))]
    }

    root = view('<schema name="s">a</schema>').root.num_tokens
    assert lengths == {
        'pattern="[ab]{3}"': [(root + 1, False), (root + 6, False)],
        'pattern="[ab]{3}" default="aba"': [(root + 3, True), (root + 6, False)],
        'type="choice" choices="a|bcd"': [(root + 1, True), (root + 3, True)],
        'type="int"': [(root + 1, True), (root + 6, True)],
    }


def test_json_and_text_tell_the_same(command: Command, folder: Path) -> None:
    """With --json the tree comes as data, with the same ranges and totals."""
    text = command("layout", "travel.xml").stdout
    data = json.loads(command("layout", "travel.xml", "--json").stdout)

    ranges = [f"[{node['start']}, {node['stop']})" for node in nodes(data["nodes"]) if node["kind"] == "module"]
    assert ranges
    assert all(each in text for each in ranges)
    assert f"all modules: {data['num_positions']} of {data['model']['max_positions']:,} positions" in text
    assert data["diagnostics"] == []


def test_dtype_decides_the_bytes(command: Command, folder: Path) -> None:
    """KV in float32 takes twice the bytes of float16."""
    half, full = (
        json.loads(command("layout", "travel.xml", "--dtype", dtype, "--json").stdout)["kv_bytes"]
        for dtype in ("float16", "float32")
    )

    assert full == 2 * half


def test_schema_longer_than_the_model_is_shown_and_refused(command: Command, folder: Path) -> None:
    """A schema that needs too many positions is laid out all the same, with the error behind it."""
    (folder / "long.xml").write_text(
        '<schema name="long" positions="fixed"><module name="m">x<parameter name="p" length="5000"/></module></schema>'
    )

    result = command("layout", "long.xml")

    assert result.exit_code == 1
    assert "slot p" in result.stdout
    assert "error[PC503]" in result.stderr


def test_faults_go_to_stderr(command: Command, folder: Path) -> None:
    """A schema with faults has no layout: its diagnostics go to stderr, the exit code is 1."""
    result = command("layout", "broken.xml")

    data = command("layout", "broken.xml", "--json")
    prompt = command("layout", "travel.xml", "--prompt", "prompts/typo.xml")

    assert (result.exit_code, result.stdout) == (1, "")
    assert "error[PC208]" in result.stderr
    assert (data.exit_code, json.loads(data.stdout)["diagnostics"][0]["code"]) == (1, "PC208")
    assert (prompt.exit_code, "PC401" in prompt.stderr) == (1, True)


def test_repair_needs_a_prompt(command: Command, folder: Path) -> None:
    """--repair without --prompt would do nothing, so it is a mistake of usage."""
    refused = command("layout", "travel.xml", "--repair", "all")

    assert (refused.exit_code, refused.stderr) == (2, "error: --repair is for a prompt; name it with --prompt PROMPT\n")
    assert command("layout", "travel.xml", "--prompt", "prompts/miami.xml", "--repair", "all").exit_code == 0


def test_a_prompt_shows_the_members_of_its_collections(command: Command, folder: Path) -> None:
    """With --prompt, a collection has the members that the prompt names, in its order."""
    (folder / "desk.xml").write_text(
        '<schema name="desk"><collection name="notes" min="1" max="3"><module name="a">One.</module>'
        '<module name="b">Two.</module></collection></schema>'
    )
    (folder / "desk-prompt.xml").write_text('<prompt schema="desk"><notes><b/><a/></notes>Well?</prompt>')

    alone = command("layout", "desk.xml").stdout
    text = command("layout", "desk.xml", "--prompt", "desk-prompt.xml").stdout

    assert "notes" in alone
    assert "collection, 1 to 3" in alone
    assert "notes/b" not in alone
    assert text.index("notes/b") < text.index("notes/a")
    assert "required" not in text[text.index("notes/b") :].splitlines()[0]
