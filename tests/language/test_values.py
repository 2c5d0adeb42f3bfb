"""Tests of the types and patterns of parameters, of versions, and of the examples of a schema."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import PromptError, SchemaError
from promptcache.language import (
    Parameter,
    ParameterType,
    Prompt,
    Schema,
    check_schema,
    example_prompt,
    parse_prompt,
    parse_schema,
    print_schema,
    resolve_prompt,
    slot,
    text_of,
)
from promptcache.language.syntax.nodes import IN_PYTHON
from promptcache.language.syntax.patterns import PatternError, matches, python_pattern, read_pattern
from promptcache.language.syntax.values import check_type, refusal
from tests.conftest import law_examples
from tests.language.documents import checked, codes, faults, selected
from tests.speed import is_within

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\W", "[a-c1]", "c", r"\.", r"\D", r"[^\d]", r"[\d\]b-z]", r"\t"])  # fmt: skip
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("(?:{0[0]}|{0[1]})".format),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}"])).map("({0[0]}){0[1]}".format),
    ),
    max_leaves=5,
)


@settings(max_examples=law_examples())
@given(pattern=PATTERNS, text=st.text(alphabet="abc1. é١\n\t]", max_size=6))
def test_patterns_match_as_regular_expressions_do(pattern, text):
    """A pattern matches a text exactly if Python's regular expression over ASCII matches all of the text."""
    assert matches(pattern, text) == (re.fullmatch(pattern, text, re.ASCII) is not None)


def test_look_around_has_a_fix() -> None:
    """The error says what to write instead."""
    with pytest.raises(PatternError) as caught:
        read_pattern("(?!x)[a-z]+")
    assert "[^,]+" in caught.value.help


@pytest.mark.parametrize(
    ("pattern", "position", "words"),
    [
        ("a(?=b)", 1, "look-ahead and look-behind"),
        ("é(?<=a)", 1, "look-ahead and look-behind"),
        ("(a", 1, "ends where ')' is expected"),
        ("a)", 1, "')' closes no group"),
        ("a**", 1, "a repetition follows another"),
        ("*a", 0, "'*' repeats nothing"),
        ("a{3,1}", 1, "the second number is smaller"),
        ("a{,3}", 1, "does not begin a number of repetitions"),
        ("a{1001}", 1, "more than 1,000 times"),
        ("[b-a]", 1, "the range b-a runs backwards"),
        ("[ab", 2, "ends where ']' is expected"),
        (r"\d[ab-\d]", 6, "cannot be the end of a range"),
        ("[[:x:]]", 1, "there is no class [:x:]"),
        (r"[\](]\(())", 9, "closes no group"),
        (r"x[\]-\[]", 2, "runs backwards"),
        (r"\p{Greek}\p{Geek}", 9, ""),
        (r"\1", 0, "refers to a group"),
        (r"\q", 0, "there is no \\q"),
        ("a\\", 1, "ends where a character after the backslash is expected"),
        ("(?#a)", 0, "groups with (?# are not supported"),
        ("(?P<a-b>x)", 0, "cannot be read"),
        ("\\pL{900}", 0, "too large"),
        ("a" * 2_001, 2_000, ""),
    ],
)
def test_faults_of_patterns_have_a_reason_and_a_place(pattern, position, words):
    """A fault of a pattern is reported at its character."""
    with pytest.raises(PatternError) as caught:
        read_pattern(pattern)
    assert (caught.value.position, words in caught.value.message) == (position, True), caught.value.message


@pytest.mark.parametrize("inside", [r"+-\]", r"\+-9", r"\[-\]", r"\t-a", r"a\-c", r"\--0", "-a", "a-", r"\w-", "^+-/"])
def test_classes_hold_what_those_of_regular_expressions_do(inside):
    """A class matches the same characters as in Python, also if an escaped character begins or ends a range."""
    expected = [each for each in map(chr, range(128)) if re.fullmatch(f"[{inside}]", each)]
    assert [each for each in map(chr, range(128)) if matches(f"[{inside}]", each)] == expected


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (r"\w+", "né", False),
        (r"\pL+", "né", True),
        (r"\p{Greek}+", "αβ", True),
        (r"\d", "٣", False),
        (r"\p{Nd}", "٣", True),
        (r"\s", "\xa0", False),
        ("é.日", "éß日", True),
        ("^a$", "a", True),
        ("a", "a\n", False),
        (".", "\n", False),
        ("(?i)straße", "STRAßE", True),
        ("(?s).", "\n", True),
    ],
)
def test_patterns_are_ascii_where_nothing_else_is_said(pattern, text, expected):
    """One-letter sets are ASCII, classes with \\p are Unicode, and a pattern must match the whole text."""
    assert matches(pattern, text) is expected


RE2_CLASSES = (
    r"\pL",
    r"\P{Lu}",
    r"[\p{Nd}x-]",
    r"[^\p{Greek}]",
    "[[:alpha:]_]",
    r"[^[:space:]\]]",
    r"\x{1F40D}",
    "[b-d]",
    r"\\p",
)


@given(data=st.data(), parts=st.lists(st.sampled_from(RE2_CLASSES), min_size=1, max_size=3))
def test_python_draws_texts_that_re2_accepts(data: st.DataObject, parts: list[str]) -> None:
    """Every text that the pattern for Python matches is matched by the pattern."""
    pattern = "+".join(parts)

    text = data.draw(st.from_regex(re.compile(python_pattern(pattern), re.ASCII), fullmatch=True))

    assert matches(pattern, text)


@pytest.mark.parametrize("pattern", ["(((a*)*)*)*b", "(a|a)*b", "(a?){50}a{50}", "a*a*a*a*a*b"])
def test_patterns_cost_no_more_than_their_text(pattern):
    """Patterns with exponential time in other engines are matched at once."""
    start = time.process_time()
    assert not matches(pattern, "a" * 2_000 + "c")
    assert is_within(time.process_time() - start, 1)


def test_large_patterns_cost_little():
    """A pattern over the limit is not parsed, and a pattern with large repetitions is refused or matched at once."""
    start = time.process_time()
    wide = "|".join(f"(?:.*[{letter}].{{400}})" for letter in "abcdefghijklmnopqrstuvwxyz")
    assert not matches(wide, "abcdefghij" * 999 + "\n")
    assert not matches("(?:a?){900}b", "a" * 10_000)
    for pattern in ("(a{99}){99}", "[\\pL\\pN]{400}", "|".join(map(str, range(100_000)))):
        with pytest.raises(PatternError):
            read_pattern(pattern)
    assert is_within(time.process_time() - start, 1)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (ParameterType.TEXT, ["", "a\nb"], []),
        (ParameterType.LINE, ["", "a b"], ["a\nb", "a\u2028b"]),
        (ParameterType.INT, ["0", "-12", "+3"], ["", "1.0", " 1", "١"]),
        (ParameterType.NUMBER, ["1", "-0.5", ".5", "1e-6"], ["", "nan", "1,5", "0x1"]),
        (ParameterType.CHOICE, ["a", "b c"], ["", "A", "b"]),
    ],
)
def test_types_take_their_values(kind, good, bad):
    """Each type accepts its values and refuses others."""
    choices = ("a", "b c") if kind is ParameterType.CHOICE else ()
    parameter = Parameter(name="p", length=4, span=IN_PYTHON, type=kind, choices=choices)
    assert not list(check_type(parameter))
    assert [text for text in (*good, *bad) if refusal(parameter, text)] == bad


@pytest.mark.parametrize("default", ["", 'default=""', 'placeholder=""'])
def test_required_arguments_are_not_empty(default: str):
    """A required parameter refuses an empty argument, also if it has an empty default or placeholder; whitespace counts as text."""
    schema = f'<schema name="s"><parameter name="p" length="4" required="true" {default}/></schema>'
    (found,) = faults(PromptError, selected, '<prompt schema="s" p=""/>', schema)
    assert "it is required, but the text is empty" in found.message
    assert (found.code, found.span.column, found.help) == ("PC420", 20, 'write p="…" with text')
    assert selected('<prompt schema="s" p=" "/>', schema).arguments[0].text == " "


def test_arguments_are_checked_against_their_type():
    """An invalid argument is refused at its place, with the nearest choice."""
    schema = '<schema name="s"><parameter name="p" length="4" type="choice" choices="calm|fast"/></schema>'
    (found,) = faults(PromptError, selected, '<prompt schema="s" p="clam"/>', schema)
    assert (found.code, found.span.column, found.help) == ("PC420", 20, "did you mean 'calm'?")


@pytest.mark.parametrize("version", ["1.4", "2024-05 & later"])
def test_prompts_are_for_one_version(version):
    """A printed prompt keeps its version, and accepts a schema with the same text only."""
    prompt = parse_prompt(Prompt("s", version=version).text("Hello").to_xml())
    assert prompt.version == version
    resolve_prompt(prompt, check_schema(Schema("s", version=version)))
    for other in ('version="1.40"', 'version=""', ""):
        found = faults(PromptError, resolve_prompt, prompt, checked(f'<schema name="s" {other}/>'))
        assert codes(found) == ["PC421"]


EXAMPLES = """<schema name="s">
  <module name="a">A <parameter name="p" length="4" default="x"/>.</module><module name="b" requires="a">B</module>
  <example name="good" valid="true" contains="A y."><prompt schema="s"><b/><a p="y"/></prompt></example>
  <example name="bad" valid="false"><prompt schema="s"><b/></prompt></example>
  <example><prompt schema="s">é
    <b/></prompt></example>
</schema>"""


def test_examples_are_read_with_their_places():
    """The examples of a checked schema are prompts, and their faults are reported at their lines of the schema."""
    good, bad, silent = checked(EXAMPLES).examples
    schema = checked(EXAMPLES)
    assert text_of(resolve_prompt(example_prompt(good), schema)) == "A y.\nB"
    assert (bad.name, bad.valid, silent.valid) == ("bad", False, None)
    (found,) = faults(PromptError, example_prompt, silent)
    assert (found.code, found.span.line, found.span.column) == ("PC412", 5, 31)


def test_message_of_a_parameter_explains_its_pattern() -> None:
    """The diagnostic of a text that does not match has the message of the schema's author."""
    parameter = '<parameter name="order" length="6" pattern="[A-Z]{2}-[0-9]+" message="write an order as AB-12"/>'
    schema = f'<schema name="s"><module name="a">{parameter}</module></schema>'

    (found,) = faults(PromptError, selected, '<prompt schema="s"><a order="12"/></prompt>', schema)

    expected = "'12' is not a valid value of parameter 'order': write an order as AB-12"
    assert (found.code, found.message) == ("PC420", expected)
    assert "write an order as AB-12" in print_schema(parse_schema(schema))


def test_message_of_a_default_is_said_in_python_too() -> None:
    """A parameter built in Python may have a message, and its default must match the pattern."""
    schema = Schema("s").module("a", slot("n", 4, pattern="[0-9]+", message="digits only", default="x"))

    with pytest.raises(SchemaError, match="digits only"):
        check_schema(schema)
