"""`promptcache explain`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import assume, given, settings

from promptcache.cli.explain import PromptFacts, schema_facts
from promptcache.diagnostics import PromptError
from promptcache.language import CheckedSchema, parse_prompt, resolve_prompt
from promptcache.layout import Origin
from promptcache.testing import strategies
from tests.cli.conftest import Command
from tests.conftest import law_examples
from tests.fakes import ByteTokenizer
from tests.layout.samples import plan_selection

pytestmark = pytest.mark.usefixtures("folder")

ADDED = {Origin.TEXT, Origin.HEADER, Origin.FOOTER}


def tokens_of_schema(prompt: PromptFacts, schema: CheckedSchema) -> int:
    """The tokens of a prompt's plan that belong to the schema."""
    plan = plan_selection(resolve_prompt(parse_prompt(prompt.xml), schema))
    new = sum(len(part.token_ids) for part in plan.prefill if part.origin not in ADDED)
    return plan.num_reused_tokens + new


@pytest.mark.law
@settings(max_examples=law_examples(0.5))
@given(schema=strategies.schemas())
def test_shortest_prompt_has_its_number_of_tokens(schema: CheckedSchema) -> None:
    """The prompt that is shown as the shortest is valid, and its plan has as many tokens as are said."""
    shortest = schema_facts(schema, "", "", ByteTokenizer()).shortest

    try:
        assert tokens_of_schema(shortest, schema) == shortest.num_tokens
    except PromptError:
        assume(False)  # an empty prompt, which no plan can be made of


@pytest.mark.law
@settings(max_examples=law_examples(0.5))
@given(schema=strategies.schemas(parameters=False))
def test_longest_prompt_has_its_number_of_tokens(schema: CheckedSchema) -> None:
    """The prompt that is shown as the longest is valid, and its plan has as many tokens as are said."""
    longest = schema_facts(schema, "", "", ByteTokenizer()).longest

    try:
        assert tokens_of_schema(longest, schema) == longest.num_tokens
    except PromptError:
        assume(False)


def test_modules_say_what_they_bring_and_hold(command: Command, folder: Path) -> None:
    """A module has its presence, what is guaranteed with it beyond what always is, and its parameters."""
    (folder / "rich.xml").write_text(
        '<schema name="rich"><module name="base" required="true">b</module>'
        '<module name="a" requires="c"><module name="in" required="true">i</module>'
        '<parameter name="p" length="3" default="x"/></module>'
        '<module name="c" cache="false">c</module><module name="no" excludes="base">n</module></schema>'
    )

    data = json.loads(command("explain", "rich.xml", "--json").stdout)

    modules = {module["path"]: module for module in data["modules"]}
    assert {path: module["presence"] for path, module in modules.items()} == {
        "": "always",
        "base": "always",
        "a": "optional",
        "a/in": "optional",
        "c": "optional",
        "no": "never",
    }
    assert modules["a"]["brings"] == ["a/in", "c"]
    assert modules["a/in"]["brings"] == ["c"]
    assert [path for path, module in modules.items() if not module["cached"]] == ["c"]
    assert modules["a"]["parameters"] == [
        {
            "name": "p",
            "length": 3,
            "type": "text",
            "choices": [],
            "pattern": None,
            "required": False,
            "default": "x",
            "placeholder": None,
        }
    ]
    assert (data["num_combinations"], data["combinations_exact"]) == (3, True)


def test_rules_are_told_in_words_with_their_places(command: Command) -> None:
    """Every rule but nesting has a sentence and a place."""
    data = json.loads(command("explain", "dead.xml", "--json").stdout)

    assert [rule["text"] for rule in data["rules"]] == ["'a' requires 'b'", "'b' excludes 'a'"]
    assert all(rule["place"].startswith("dead.xml:1:") for rule in data["rules"])


def test_text_has_all_of_it(command: Command) -> None:
    """As text there are modules, parameters, rules, combinations, and both prompts as XML."""
    text = command("explain", "travel.xml").stdout

    assert "\n    hotel  4 positions · default 'any'\n" in text
    assert "\n  'miami', 'paris' are members of one union  travel.xml:4:" in text
    assert "\nvalid combinations: 6\n" in text
    assert '\n  <prompt schema="travel"/>\n' in text
    assert '<plan days="… 6 tokens …"/>' in text


def test_dead_module_is_marked(command: Command) -> None:
    """A module that no prompt can have is told."""
    assert "a  1 token · can never be used" in command("explain", "dead.xml").stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("broken.xml",), 1, "error[PC208]"),
        (("gone.xml",), 3, "error[PC010]"),
        (("travel.xml", "--model", "someone/something"), 3, "is no folder"),
    ],
)
def test_what_cannot_be_explained_is_told(command: Command, words: tuple[str, ...], code: int, message: str) -> None:
    """Faults of the schema and a missing model end with their exit codes."""
    result = command("explain", *words)

    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr


TYPED = """\
<schema name="typed">
  <parameter name="days" length="3" type="int"/>
  <parameter name="class" length="4" type="choice" choices="first|second"/>
  <parameter name="code" length="6" type="line" pattern="[A-Z]{2}\\d+"/>
  <parameter name="many" length="2" type="choice" choices="a|b|c|d|e|f|g|h"/>
</schema>
"""


def test_parameters_say_what_they_take(folder: Path, command: Command) -> None:
    """Each parameter shows its type, its choices – of many, some – and its pattern; JSON has them all."""
    (folder / "typed.xml").write_text(TYPED)

    text = command("explain", "typed.xml").stdout
    parameters = json.loads(command("explain", "typed.xml", "--json").stdout)["modules"][0]["parameters"]

    assert "    days  3 positions · a whole number\n" in text
    assert "    class  4 positions · one of first, second\n" in text
    assert "    code  6 positions · one line · matches [A-Z]{2}\\d+\n" in text
    assert "    many  2 positions · one of a, b, c, d, e, f and 2 more\n" in text
    assert [(each["type"], each["choices"], each["pattern"]) for each in parameters] == [
        ("int", [], None),
        ("choice", ["first", "second"], None),
        ("line", [], "[A-Z]{2}\\d+"),
        ("choice", ["a", "b", "c", "d", "e", "f", "g", "h"], None),
    ]
