"""`promptcache explain`."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.cli.explain import schema_facts
from promptcache.diagnostics import PromptError
from promptcache.language import CheckedSchema, Selection, check_schema, parse_prompt, parse_schema, resolve_prompt
from promptcache.layout import Origin
from tests import strategies
from tests.cli.conftest import Command
from tests.conftest import law_examples
from tests.fakes import ByteTokenizer
from tests.layout.samples import plan_selection

pytestmark = pytest.mark.usefixtures("folder")

ADDED = {Origin.TEXT, Origin.HEADER, Origin.FOOTER}


def tokens_of_schema(selection: Selection) -> int:
    """The tokens of a prompt's plan that belong to the schema."""
    plan = plan_selection(selection)
    new = sum(len(part.token_ids) for part in plan.prefill if part.origin not in ADDED)
    return plan.num_reused_tokens + new


@pytest.mark.law
@settings(max_examples=law_examples())
@given(schema=strategies.schemas())
def test_both_prompts_are_prompts_of_their_lengths(schema: CheckedSchema) -> None:
    """The shortest and the longest prompt pass the checker for any slots, and have the reported number of tokens."""
    facts = schema_facts(schema, "", "", ByteTokenizer())

    for prompt in (facts.shortest, facts.longest):
        selection = resolve_prompt(parse_prompt(prompt.xml), schema)
        with suppress(PromptError):  # an empty prompt, which no plan can be made of
            assert tokens_of_schema(selection) == prompt.num_tokens


@pytest.mark.law
@settings(max_examples=law_examples(0.5))
@given(data=st.data(), schema=strategies.schemas())
def test_no_prompt_is_longer_than_the_longest(data: st.DataObject, schema: CheckedSchema) -> None:
    """A number without "about" is a limit: no prompt takes more tokens of the schema."""
    facts = schema_facts(schema, "", "", ByteTokenizer())
    selection = data.draw(strategies.prompts(schema))

    with suppress(PromptError):
        number = tokens_of_schema(selection)
        assert number <= facts.longest.num_tokens or not facts.longest.exact


def test_modules_say_what_they_bring_and_hold(command: Command, folder: Path) -> None:
    """A module is shown with its presence, the modules guaranteed with it, and its parameters."""
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
            "fits": True,
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

    assert "\n    hotel  length 4 · default 'any'\n" in text
    assert "\n  'miami', 'paris' are members of one union  travel.xml:4:" in text
    assert "\nvalid combinations: 6\n" in text
    assert '\n  <prompt schema="travel"/>\n' in text
    assert '<plan days="x x x x x x"/>' in text


def test_dead_module_is_marked(command: Command) -> None:
    """A module that no prompt can use is reported."""
    assert "a  1 token · can never be used" in command("explain", "dead.xml").stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("broken.xml",), 1, "error[PC208]"),
        (("gone.xml",), 3, "error[PC010]"),
        (("travel.xml", "--model", "./nowhere"), 3, "does not exist"),
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

    assert "    days  length 3 · a whole number\n" in text
    assert "    class  length 4 · one of first, second\n" in text
    assert "    code  length 6 · one line · matches [A-Z]{2}\\d+\n" in text
    assert "    many  length 2 · one of a, b, c, d, e, f and 2 more\n" in text
    assert [(each["type"], each["choices"], each["pattern"]) for each in parameters] == [
        ("int", [], None),
        ("choice", ["first", "second"], None),
        ("line", [], "[A-Z]{2}\\d+"),
        ("choice", ["a", "b", "c", "d", "e", "f", "g", "h"], None),
    ]


SLOTS = {
    'type="int"': ("111", 3),
    'type="number" required="true"': ("111", 3),
    'type="choice" choices="a|bb|cccc"': ("bb", 2),
    'type="choice" choices="aaaa|bbbbb"': (None, 0),
    'type="line" pattern="[A-Z]\\d*"': ("A00", 3),
    'pattern="é"': ("é", 2),
    'pattern="[[:alpha:]]\\pN*"': ("a00", 3),
    'type="int" pattern="-.."': ("-00", 3),
    'pattern="a{4}"': (None, 0),
    'pattern="a?" default="a"': ("a", 1),
}


@pytest.mark.parametrize(("attributes", "expected"), SLOTS.items())
def test_longest_argument_is_one_that_the_slot_takes(attributes: str, expected: tuple[str | None, int]) -> None:
    """Each kind of parameter gets a text of its kind, as long as fits; where nothing fits, the slot is left out and marked."""
    schema = check_schema(parse_schema(f'<schema name="s">a<parameter name="p" length="3" {attributes}/></schema>'))

    facts = schema_facts(schema, "", "", ByteTokenizer(bos=False))

    text, length = expected
    given_texts = parse_prompt(facts.longest.xml).arguments
    assert [each.text for each in given_texts] == ([] if text is None else [text])
    assert facts.longest.num_tokens == 1 + length
    assert facts.modules[0].parameters[0].fits == (text is not None)


REQUIRED = {
    'type="int"': "0",
    'type="choice" choices="ccc|bb"': "bb",
    'pattern="[a-z]{2}"': "aa",
    'pattern="Ж+"': "Ж",
    'pattern="\\p{Cyrillic}+"': "Ѐ",
    'type="number" pattern="\\d+\\.\\d{2}"': "0.00",
    "": "0",
    'type="line"': "0",
    'pattern="[b-d]*"': "b",
    'pattern="(abc)?"': "abc",
    'pattern="a{5}"': "aaaaa",
}


@pytest.mark.parametrize(("attributes", "text"), REQUIRED.items())
def test_shortest_argument_is_one_that_the_parameter_takes(attributes: str, text: str) -> None:
    """A required parameter gets the shortest text of its kind, also where its slot is too small for that."""
    parameter = f'<parameter name="p" length="4" required="true" {attributes}/>'
    schema = check_schema(parse_schema(f'<schema name="s">a{parameter}</schema>'))

    shortest = schema_facts(schema, "", "", ByteTokenizer(bos=False)).shortest

    assert [each.text for each in parse_prompt(shortest.xml).arguments] == [text]
    assert shortest.num_tokens == 1 + len(text.encode())


def test_long_slots_are_filled_in_no_time(command: Command, folder: Path) -> None:
    """Slots of thousands of tokens, of text and of a pattern, get their texts, and the prompt fits."""
    slots = [
        f'<parameter name="{name}" length="2000" {more}/>'
        for name, more in {"a": "", "b": 'pattern="[a-f]+ ?x*"'}.items()
    ]
    (folder / "long.xml").write_text(f'<schema name="long">{" and ".join(slots)}</schema>')

    longest = json.loads(command("explain", "long.xml", "--json").stdout)["longest"]

    (folder / "longest.xml").write_text(longest["xml"])
    rendered = json.loads(command("render", "longest.xml", "--schema", "long.xml", "--json").stdout)
    assert longest["num_tokens"] == rendered["num_reused_tokens"] + rendered["num_new_tokens"] > 2_500


def test_a_slot_that_nothing_fits_into_is_marked(command: Command, folder: Path) -> None:
    """The author sees which parameter no prompt can fill."""
    (folder / "tight.xml").write_text(
        '<schema name="tight"><parameter name="p" length="1" type="choice" choices="one of many|some other one"/></schema>'
    )

    assert (
        "p  length 1 · one of one of many, some other one · no allowed value fits\n"
        in command("explain", "tight.xml").stdout
    )
