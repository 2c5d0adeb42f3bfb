"""The element `answer`: the formats that it states, where they come from, and answers of examples."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import PromptError, SchemaError
from promptcache.language import (
    AnswerFormat,
    ParameterType,
    Prompt,
    Schema,
    check_schema,
    example_prompt,
    format_document,
    output_format,
    parse_prompt,
    parse_schema,
    print_schema,
)
from promptcache.language.syntax.values import answer_faults, answer_refusal, not_of_type
from promptcache.structured import Choice, JSONSchema, Regex
from tests.conftest import law_examples
from tests.language.documents import checked, codes, faults, selected

SCHEMA = '<schema name="s"><module name="a">A</module>{}</schema>'
PROMPT = '<prompt schema="s">{}<a/>B</prompt>'
DAYS = '{"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}'

FORMATS = {
    "int": AnswerFormat(type=ParameterType.INT),
    "number": AnswerFormat(type=ParameterType.NUMBER),
    "line": AnswerFormat(type=ParameterType.LINE),
    "choice": AnswerFormat(type=ParameterType.CHOICE, choices=("1", "-2", "ab", "é|")),
    "int in a range": AnswerFormat(type=ParameterType.INT, pattern="[1-5]|1[0-2]"),
    "choice with a pattern": AnswerFormat(type=ParameterType.CHOICE, choices=("1", "ab"), pattern="[a-z]+"),
    **{
        pattern: AnswerFormat(pattern=pattern)
        for pattern in (
            *(r"\d+", r"\w+|\s", r"^[^[\]]+$", "[[]+", "[a&&b]+", "[a~~b]*", "[+--]+", r"[\]&&-]+", "[[:alpha:]&&1]+"),
            *("(?i)é+", "(?s).*", ".*", r"\pL+", r"[^\pL]", r"\x41|\z", "a/b|[/]", "\n+", "(?:ab|1)*?"),
        )
    },
}
TEXTS = st.text(alphabet="0123+-.eE ab[]&~/\\AéÉ²\n\r\x85\u2028|", max_size=5)


def output_of(source: Any) -> Any:
    """Return the format of answers that a prompt or a schema states."""
    return output_format(source.answer_format)


@pytest.mark.parametrize("answer", FORMATS.values(), ids=map(repr, FORMATS))
@settings(max_examples=law_examples())
@given(text=TEXTS)
def test_answers_have_the_type_of_parameters(answer: AnswerFormat, text: str) -> None:
    """A format takes the texts that a parameter of the same type and pattern takes."""
    is_accepted = output_format(answer).accepts(text)
    assert not list(answer_faults(answer))
    assert is_accepted == (not_of_type(answer, text) is None) == (answer_refusal(answer, text) is None)


@pytest.mark.parametrize(
    ("attributes", "text", "value"),
    [
        ('type="int"', "-12", -12),
        ('type="int" pattern="[1-5]"', "3", 3),
        ('type="number"', "-.5e1", -5.0),
        ('type="number"', "3", 3.0),
        ('type="choice" choices="yes|as they come"', "as they come", "as they come"),
        ('type="line"', "One line.", "One line."),
        ('pattern="[A-Z]{2}-\\d+"', "AB-12", "AB-12"),
        ('src="answer.schema.json"', '{"days": 3}', {"days": 3}),
    ],
)
def test_answers_have_values(attributes: str, text: str, value: Any) -> None:
    """The format reads the value of a text: an int, a float, a text, or what JSON says."""
    found = output_of(checked(SCHEMA.format(f"<answer {attributes}/>"), folder={"answer.schema.json": DAYS})).parse(
        text
    )
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("own", "expected"), [("", Regex(r"[+-]?[0-9]+")), ('<answer pattern="b"/>', Regex("b")), ("<answer/>", None)]
)
def test_the_answer_of_a_prompt_wins(own: str, expected: Regex | None) -> None:
    """A prompt has its own format, also if this is any text, and else that of its schema."""
    assert output_of(selected(PROMPT.format(own), SCHEMA.format('<answer type="int"/>'))) == expected


def test_python_builds_what_documents_say() -> None:
    """`answer` of both builders writes the element, and reading it gives the same format."""
    schema = Schema("s").module("a", "A").answer(ParameterType.CHOICE, choices=("yes", "no"))
    assert '<answer type="choice" choices="yes|no"/>' in print_schema(schema)
    assert output_of(checked(print_schema(schema))) == Choice(["yes", "no"])
    prompt = Prompt("s").answer(ParameterType.INT).answer(ParameterType.INT, pattern="[1-5]").use("a").user("B")
    assert '<answer type="int" pattern="[1-5]"/>' in prompt.to_xml()
    assert output_of(parse_prompt(prompt.to_xml())) == output_of(prompt) == Regex("[+-]?[0-9]+", also="[1-5]")


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"kind": "integer"}, "PC105"),
        ({"kind": "choice"}, "PC104"),
        ({"choices": ("a",)}, "PC105"),
        ({"kind": "choice", "choices": ("a", "a")}, "PC105"),
        ({"pattern": "["}, "PC215"),
        ({"pattern": 3}, "PC105"),
        ({"kind": "int", "pattern": "[a-z]"}, "PC227"),
    ],
)
def test_builders_refuse_formats_that_are_none(options: Any, code: str) -> None:
    """A prompt refuses them at once, a schema when it is checked."""
    schema = Schema("s").module("a", "A").answer(**options)
    assert codes(faults(PromptError, Prompt("s").answer, **options)) == [code]
    assert codes(faults(SchemaError, check_schema, schema)) == [code]


def test_files_are_beside_their_document(tmp_path: Path) -> None:
    """Schemas, prompts and templates read the JSON schema beside them; printing and formatting keep its name."""
    (tmp_path / "answer.schema.json").write_text(DAYS)
    stated = '<answer src="answer.schema.json"/>'
    (tmp_path / "schema.xml").write_text(SCHEMA.format(stated))
    for name in ("prompt.xml", "prompt.xml.j2"):
        (tmp_path / name).write_text(PROMPT.format(stated))
        prompt = Prompt.from_file(tmp_path / name)
        assert output_of(prompt) == JSONSchema(DAYS)
        again = parse_prompt(prompt.to_xml(), folder=tmp_path).answer_format
        assert (again.src, again.schema) == ("answer.schema.json", DAYS)
    schema = Schema.from_file(tmp_path / "schema.xml")
    for printed in (print_schema(schema), format_document(SCHEMA.format(stated), folder=tmp_path)):
        assert stated in printed
        assert output_of(checked(printed, folder=tmp_path)) == JSONSchema(DAYS)
    assert stated in format_document(PROMPT.format(stated), folder=tmp_path)


@pytest.mark.parametrize(
    ("document", "src", "folder", "message"),
    [
        (PROMPT, "a.json", None, "PC214 src='a.json' needs a folder, but a prompt that is given as text has none"),
        (SCHEMA, "a.json", None, "PC214 src='a.json' needs a folder, but a schema that is given as text has none"),
        (PROMPT, "b.json", {"a.json": "{}"}, "PC211 src='b.json' is not a file in the folder of the prompt"),
        (PROMPT, "../a.json", {"a.json": "{}"}, "PC210 src='../a.json' is outside the folder of the prompt"),
        (PROMPT, "a.json", {"a.json": "[]"}, "PC227 a JSON schema is an object"),
        (SCHEMA, "a.json", {"a.json": '{"type": "strin"}'}, "Invalid type: strin"),
        (SCHEMA, "a.json", {"a.json": "{,}"}, "PC227 the JSON schema of the answer is not JSON"),
    ],
)
def test_files_that_cannot_be_used_are_refused(
    document: str, src: str, folder: dict[str, str] | None, message: str
) -> None:
    """The message names the attribute, and what is wrong with the file."""
    text = document.format(f'<answer src="{src}"/>')
    error, read = (PromptError, parse_prompt) if document == PROMPT else (SchemaError, checked)
    (found,) = faults(error, read, text, folder=folder)
    assert message in f"{found.code} {found.message}"
    assert text[found.span.column - 1 :].startswith(src)


def test_the_answer_of_an_included_file_stays_there() -> None:
    """It describes the prompts of that file."""
    other = SCHEMA.format('<answer type="int"/>')
    assert checked('<schema name="t"><include href="s.xml"/></schema>', folder={"s.xml": other}).answer_format is None


def test_hardly_meant_choices_are_warnings() -> None:
    """Commas between choices are a warning, as for parameters."""
    stated = '<answer type="choice" choices="yes, no"/>'
    for warnings in (checked(SCHEMA.format(stated)).warnings, parse_prompt(PROMPT.format(stated)).warnings):
        assert codes(warnings) == ["PC223"]
        assert warnings[0].message == "the answer has only one choice, 'yes, no'"


def exampled(answer: str, own: str = "", stated: str = '<answer src="a.json"/>') -> Schema:
    """Return a schema with an example that has an answer."""
    example = f"<example name='e' answer='{answer}'><prompt schema='s'>{own}<a/></prompt></example>"
    return parse_schema(SCHEMA.format(stated + example), folder={"a.json": DAYS})


@pytest.mark.parametrize(
    ("answer", "own"),
    [('{"days": 3}', ""), ('{"days":3}', ""), ("3", '<answer type="int"/>'), ("anything", "<answer/>")],
)
def test_answers_of_examples_have_the_format(answer: str, own: str) -> None:
    """The format of an example's prompt takes the answer, or that of the schema."""
    schema = check_schema(exampled(answer, own))
    assert schema.examples[0].answer == answer
    assert checked(print_schema(schema.source), folder={"a.json": DAYS}).examples[0].answer == answer
    assert example_prompt(schema.examples[0]).references


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (exampled("three", '<answer type="int"/>'), "does not have its format: it takes a whole number, such as 12 or -3"),
        (exampled('{"day": 3}'), "does not have its format: it is not JSON of the schema"),
        (exampled('{"days": 3'), "does not have its format: it is not JSON: Expecting"),
        (exampled("x", stated=""), "neither its prompt nor the schema has an <answer>"),
    ],
)  # fmt: skip
def test_answers_of_another_format_are_reported(schema: Schema, message: str) -> None:
    """The diagnostic is at the attribute and gives the reason."""
    (found,) = faults(SchemaError, check_schema, schema)
    assert found.code == "PC316"
    assert message in found.message


def test_many_answers_are_not_all_read() -> None:
    """A document with thousands of answers is refused without checking the format of each."""
    many = "".join(f'<answer pattern="{number}\\b"/>' for number in range(10_000))
    for found in (
        codes(faults(PromptError, parse_prompt, PROMPT.format(many))),
        codes(faults(SchemaError, checked, SCHEMA.format(many))),
    ):
        assert found.count("PC227") == 1
        assert "PC113" in found
