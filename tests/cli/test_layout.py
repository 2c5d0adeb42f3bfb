"""`promptcache layout`."""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from promptcache.cli.console import stdout
from promptcache.cli.layout import LayoutView, print_layout, view_layout
from promptcache.layout import run_variants
from promptcache.tokenizer import Dtype, ModelFacts
from tests.cli.conftest import TRAVEL, Command, data
from tests.layout.samples import layout_of

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
    layout = layout_of(text)
    sizes = {"num_layers": 1, "num_kv_heads": 1, "head_dim": 1, "token_bytes": 10, "max_positions": 100}
    facts = ModelFacts(name="bytes", dtype=Dtype.FLOAT32, is_wider_on_cpu=False, **sizes)
    return view_layout((layout, run_variants(layout)), facts)


def nodes(tree: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All nodes of a tree."""
    yield tree
    for child in tree["children"]:
        yield from nodes(child)


def test_tree_shows_positions_costs_and_visibility(capsys: pytest.CaptureFixture[str]) -> None:
    """The tree shows every part with its positions, and a module with its tokens, bytes and context."""
    print_layout(view(), stdout())

    assert capsys.readouterr().out.splitlines() == [
        "trip  positions [0, 51) · bytes, KV in float32, 10 B per token",
        "├── <system>  [1, 12) 11 tokens · 110 B",
        "├── plan  [12, 33) 8 tokens · 80 B · sees (root)",
        "│   ├── slot days  [12, 20) 8 positions · default 'two'",
        '│   ├── "days"  [20, 25) 5 tokens',
        "│   └── plan/car  [25, 33) 8 tokens · 80 B · sees (root), plan",
        "├── union city  [33, 47) · exactly one · default rome",
        "│   ├── rome  [33, 47) 5 tokens · 50 B · reserve 14 · sees (root)",
        "│   └── miami  [33, 39) 6 tokens · not cached",
        "├── <user>  [47, 51) 4 tokens · 40 B · open",
        "└── scaffold both  [33, 38) 5 tokens once more · 50 B · plan + rome",
        "to be encoded: 42 tokens in 7 encodings · 420 B",
        "valid combinations of modules: 6",
        "all modules: 51 of 100 positions, slots whole",
    ]


def test_the_cost_of_warming_is_that_of_warm(command: Command, folder: Path) -> None:
    """`layout`, `check --model` and `warm --estimate` have the same numbers. Without pairs and members, there is no line of its own."""
    (folder / "plain.xml").write_text('<schema name="plain"><module name="a">One.</module></schema>', encoding="utf-8")
    (folder / "more.xml").write_text(
        """<schema name="more"><module name="a">One.</module><module name="b">Two.</module>
        <collection name="c"><module name="m">Three.</module></collection></schema>""",
        encoding="utf-8",
    )
    for name, has_more in (("plain.xml", False), ("more.xml", True), ("travel.xml", True)):
        (estimate,) = data(command("warm", name, "--estimate", "--json"))["schemas"]
        found = data(command("layout", name, "--json"))
        assert found["warm"] == data(command("check", name, "--model", "demo", "--json"))["documents"][0]["warm"]
        assert found["warm"]["num_encodings"] == estimate["num_encodings"]
        assert found["warm"]["num_tokens"] == estimate["num_tokens"]
        assert f"{name}: warm encodes {estimate['num_tokens']} " in command("check", name, "--model", "demo").stdout
        line = (
            f"by warm, with pairs and members: {estimate['num_tokens']} tokens in {estimate['num_encodings']} encodings"
        )
        assert (line in command("layout", name).stdout) == has_more


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


def test_json_and_text_tell_the_same(command: Command, folder: Path) -> None:
    """--json has the tree as data, with the same ranges and totals; output to a pipe is neither wrapped nor cut."""
    name = "m" * 200
    (folder / "travel.xml").write_text(TRAVEL.replace("</system>", f'<module name="{name}">a</module></system>'))
    text = command("layout", "travel.xml", "--dtype", "float32").stdout
    found, half = (data(command("layout", "travel.xml", "--dtype", each, "--json")) for each in ("float32", "float16"))

    modules = [node for node in nodes(found["tree"]) if node["kind"] == "module"]
    assert len(modules) == 4
    assert all(f"[{node['start']}, {node['stop']})" in text for node in modules)
    assert f"all modules: {found['num_positions']} of {found['model']['max_positions']:,} positions" in text
    assert (found["diagnostics"], found["kv_bytes"]) == ([], 2 * half["kv_bytes"])
    assert any(f"─ {name}  [" in line and " tokens · " in line for line in text.splitlines())


def test_faults_go_to_stderr(command: Command, folder: Path) -> None:
    """Faults without a layout are data of --json; a schema with too many positions is laid out before its error."""
    (folder / "long.xml").write_text(
        '<schema name="long" positions="fixed"><module name="m">x<parameter name="p" length="5000"/></module></schema>'
    )
    broken, long = command("layout", "broken.xml", "--json"), command("layout", "long.xml")

    assert (broken.exit_code, json.loads(broken.stdout)["diagnostics"][0]["code"]) == (1, "PC208")
    assert long.exit_code == 1
    assert "slot p" in long.stdout
    assert "error[PC503]" in long.stderr


def test_a_prompt_shows_the_members_of_its_collections(command: Command, folder: Path) -> None:
    """With --prompt, a collection has the members that the prompt names, in its order, at its positions."""
    (folder / "desk.xml").write_text(
        '<schema name="desk"><collection name="notes" min="1" max="3"><module name="a">One.</module>'
        '<module name="b">Two.</module></collection></schema>'
    )
    (folder / "desk-prompt.xml").write_text('<prompt schema="desk"><notes><b/><a/></notes>Well?</prompt>')

    alone = command("layout", "desk.xml").stdout
    words = ("layout", "desk.xml", "--prompt", "desk-prompt.xml")
    text = command(*words).stdout
    drawn = command(*words, "--svg", "desk.svg", "--html", "desk.html")
    found = data(command(*words, "--json"))

    assert "notes" in alone
    assert "collection, 1 to 3" in alone
    assert "notes/b" not in alone
    assert text.index("notes/b") < text.index("notes/a")
    assert "required" not in text[text.index("notes/b") :].splitlines()[0]
    assert "\x1b" not in text
    assert text == drawn.stdout
    assert (folder / "desk.svg").read_text().startswith("<svg")
    assert "notes/b" in (folder / "desk.html").read_text()
    parts = [*nodes(found["tree"])]
    tokens = [part["tokens"] for part in parts if not part["stretches"]]
    prompt = found["prompt"]
    assert sum(each.get("reused", 0) for each in tokens) == prompt["num_reused_tokens"]
    assert sum(sum(each.values()) for each in tokens) == prompt["num_reused_tokens"] + prompt["num_new_tokens"]
    assert found["tree"]["stop"] == prompt["next_position"]
    assert f"the answer starts at position {prompt['next_position']}" in text


def test_modules_of_one_text_count_once_of_the_limit(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit counts different encodings: members of a union with one text share theirs, and hide no others."""
    monkeypatch.setattr(import_module("promptcache.cli.request"), "_MAX_COUNTED", 3)
    modules = (
        '<union><module name="a">Same.</module><module name="b">Same.</module></union><module name="c">Other.</module>'
    )
    (folder / "same.xml").write_text(f'<schema name="same" context="guaranteed">{modules}</schema>', encoding="utf-8")

    assert data(command("layout", "same.xml", "--json"))["warm"]["num_encodings"] == 3
