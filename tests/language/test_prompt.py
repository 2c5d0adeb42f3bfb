"""Tests of prompts built in Python, and of their XML."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import PromptError
from promptcache.language import Prompt, Role, Schema, check_schema, parse_prompt, resolve_prompt, tool_definitions
from promptcache.language.syntax.nodes import IN_PYTHON, Argument, Message, Reference
from tests.conftest import law_examples
from tests.language.documents import checked, codes, faults, without_spans

TEXTS = st.text(alphabet="ab \n\t\r<>&\"'é😀]", max_size=8)
ARGUMENT = Argument(name="p", text="1", span=IN_PYTHON)
NAMES = st.sampled_from(["a", "b.c", "d-e_2", "é", "module", "schema", "Text"])
ARGUMENTS = st.dictionaries(NAMES, TEXTS, max_size=3).map(
    lambda found: tuple(Argument(name=name, text=text, span=IN_PYTHON) for name, text in found.items())
)
REFERENCES = st.recursive(
    st.builds(
        Reference,
        path=st.lists(NAMES, min_size=1, max_size=3).map("/".join),
        span=st.just(IN_PYTHON),
        absolute=st.booleans(),
        arguments=ARGUMENTS,
    ),
    lambda inner: st.builds(
        Reference,
        path=NAMES,
        span=st.just(IN_PYTHON),
        arguments=ARGUMENTS,
        children=st.lists(inner, max_size=2).map(tuple),
    ),
    max_leaves=4,
)
TURNS = st.lists(st.builds(Message, role=st.sampled_from(Role), text=TEXTS, span=st.just(IN_PYTHON)), max_size=3)
BARE = TEXTS.filter(bool).map(lambda text: [Message(role=None, text=text, span=IN_PYTHON)])
PROMPTS = st.builds(
    Prompt,
    st.sampled_from(["travel", "a b"]),
    references=st.lists(REFERENCES, max_size=3).map(tuple),
    arguments=ARGUMENTS,
    messages=(TURNS | BARE).map(tuple),
    version=st.sampled_from([None, "2", "1.2 <rc>"]),
)


@settings(max_examples=law_examples())
@given(prompt=PROMPTS)
def test_the_text_of_a_prompt_is_its_document(prompt):
    """Reading `str(prompt)` gives an equal prompt, with every character of its texts."""
    again = Prompt.from_xml(str(prompt))

    assert again == prompt
    assert without_spans(again) == without_spans(prompt)
    assert again != again.use("another")


def test_a_prompt_without_a_document_has_a_text():
    """Where XML cannot hold a text, `str` shows the prompt as `repr` does, so an error message can name it."""
    prompt = Prompt("s").user("\x00")

    assert str(prompt) == repr(prompt)


def test_a_file_and_its_text_are_one_prompt(tmp_path):
    """`from_file` reads what `str` writes; the places are those of the file, also in diagnostics."""
    prompt = Prompt("travel").use("miami").user("Where?")
    path = tmp_path / "p.xml"
    path.write_text(str(prompt))

    found = Prompt.from_file(path)
    assert found == prompt
    assert found.messages[0].span.source == str(path)
    path.write_text("<prompt/>")
    with pytest.raises(PromptError, match=re.escape(f"{path}:1:2: PC104")):
        Prompt.from_file(path)


def test_the_builder_writes_what_the_document_says():
    """A built prompt equals the prompt of the corresponding document."""
    built = Prompt("travel").use("cities/miami", days="three").use("style").user("Where?").assistant("There:")
    document = (
        '<prompt schema="travel"><use module="cities/miami" days="three"/><style/>'
        "<user>Where?</user><assistant>There:</assistant></prompt>"
    )
    assert without_spans(built) == without_spans(parse_prompt(document))


def test_arguments_may_have_any_name():
    """Arguments may have names that are reserved in Python or in prompts."""
    prompt = Prompt("s").use("m", **{"self": "1", "module": "2", "unit.py": "3"})
    assert [argument.name for argument in prompt.references[0].arguments] == ["self", "module", "unit.py"]


@pytest.mark.parametrize(
    "prompt",
    [
        Prompt("s").fill(p="1").fill(p="2"),
        Prompt("s", references=(Reference(path="m", span=IN_PYTHON, arguments=(ARGUMENT, ARGUMENT)),)),
    ],
)
def test_an_argument_given_twice_is_refused_in_xml_too(prompt: Prompt) -> None:
    """The document of a prompt has every argument: reading it gives the error that resolving the prompt gives."""
    schema = checked(
        '<schema name="s"><module name="m"><parameter name="p" length="1"/></module><parameter name="p" length="1"/></schema>'
    )

    assert codes(faults(PromptError, resolve_prompt, prompt, schema)) == ["PC403"]
    assert codes(faults(PromptError, parse_prompt, prompt.to_xml())) == ["PC403"]


def test_bare_text_stands_alone():
    """Bare text behind a turn or another text is refused when building, and before turns unless a turn is open."""
    for begun in (Prompt("s").user("one"), Prompt("s").text("one")):
        assert codes(faults(PromptError, begun.text, "two")) == ["PC416"]
    prompt = Prompt("s").text("one").assistant("two")
    open_turn, closed = (checked(f'<schema name="s"><user>Go</user>{text}</schema>') for text in ("", "<assistant/>"))
    assert [each.text for each in resolve_prompt(prompt, open_turn).messages] == ["one", "two"]
    assert codes(faults(PromptError, resolve_prompt, prompt, closed)) == ["PC416"]


@pytest.mark.parametrize("prompt", [Prompt("s").user("\x00"), Prompt("s").use("m", p="\uffff")])
def test_xml_is_refused_where_it_cannot_hold_a_text(prompt):
    """A character that XML cannot represent gives a diagnostic, not a malformed document."""
    assert codes(faults(PromptError, prompt.to_xml)) == ["PC011"]


def test_faults_inside_an_unusable_reference_are_reported_too() -> None:
    """Faults inside a reference are reported even if its path is invalid."""
    document = '<prompt schema="s"><use module="">words</use></prompt>'
    assert codes(faults(PromptError, parse_prompt, document)) == ["PC207", "PC412"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        (
            '{"type": "function", "function": {"name": "f"}} or\n{ "type" : "function", "function": {"name": "g"}}.',
            ["f", "g"],
        ),
        ('{"type": "function", "function": {}} {"type": "function", "function": {"name": "f"}}', ["f"]),
        ('{"type": "function", "function": {"name": "f"', []),
        ('{"type": "function", ' * 100_000, []),
    ],
    ids=["none", "two", "no name", "cut", "deep"],
)
def test_definitions_of_tools_in_a_text_are_found(text: str, names: list[str]) -> None:
    """Each object that is a tool is found, whatever is around it; JSON that is not complete ends the search."""
    schema = Schema("agent").module("a", f"Tools: {text}")
    selection = resolve_prompt(Prompt("agent").use("a"), check_schema(schema))

    assert [each["function"]["name"] for each in tool_definitions(selection)] == names
