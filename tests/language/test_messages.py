"""Tests of diagnostics: the place of the cause, the suggested text, and documents that are meant and have no warning."""

from pathlib import Path

import pytest

from promptcache.diagnostics import Diagnostic, LanguageError, PromptError, Severity
from promptcache.language import Schema, check_schema, module, parse_prompt, slot
from tests.language.documents import checked, codes, faults, selected

MODULES = '<module name="a">A</module><module name="b">B</module>'
LAW = """<schema name="law">
  <module name="style">
    <union>
      <module name="plain-language">Plain.</module>
      <module name="formal">Formal.</module>
    </union>
  </module>
  <module name="facts" requires="matter">Facts.</module>
  <module name="matter">
    <parameter name="title" length="8" required="true"/>
    <parameter name="note" length="8"/>
    <module name="pages">Pages <parameter name="range" length="8" required="true"/></module>
  </module>
  <module name="summary" requires="matter/pages">Summary.</module>
</schema>"""


def found(schema: str) -> tuple[Diagnostic, ...]:
    """Return all diagnostics of a schema, warnings included."""
    try:
        return checked(schema).warnings
    except LanguageError as error:
        return error.diagnostics


def place(diagnostic: Diagnostic) -> str:
    """Return the line and column of a diagnostic."""
    return f"{diagnostic.span.line}:{diagnostic.span.column}"


@pytest.mark.parametrize(
    ("prompt", "code", "advice"),
    [
        ("<facts/>", "PC409", 'add <matter title="…"/>'),
        ("<summary/>", "PC409", 'add <matter title="…"><pages range="…"/></matter>'),
        ('<matter title="x"/><summary/>', "PC409", 'add <use module="matter/pages" range="…"/>'),
        ("<plain-language/>", "PC401", "there is one at /style/plain-language: write <style><plain-language/></style>"),
        (
            '<matter title="x"><formal/></matter>',
            "PC401",
            "there is one at /style/formal: write <style><formal/></style> at the top level",
        ),
    ],
)
def test_help_has_parents_and_required_arguments(prompt: str, code: str, advice: str) -> None:
    """A reference in the help is nested in its parents, and has all required arguments."""
    found = faults(PromptError, selected, f'<prompt schema="law">{prompt}</prompt>', LAW)[0]
    assert (found.code, found.help) == (code, advice)


@pytest.mark.parametrize(
    ("rule", "place_of_rule", "uses"),
    [
        ('<rules>\n<exclude modules="a b" message="Not both."/></rules>', "2:1", "<a/><b/>"),
        ('<rules>\n<require if="a" then="b"/></rules>', "2:1", "<a/>"),
        ('\n<module name="c" requires="b"/>', "2:28", "<c/>"),
        ('\n<module name="c" required="true">C</module>', "2:28", "<a/>"),
    ],
)
def test_rule_that_makes_an_example_invalid_is_the_place(rule: str, place_of_rule: str, uses: str) -> None:
    """An example that a rule forbids is reported at the rule, with the example as a related place."""
    example = f'\n<example valid="true"><prompt schema="s">{uses}</prompt></example>'

    (first,) = found(f'<schema name="s">{MODULES}{rule}{example}</schema>')

    assert (first.code, place(first)) == ("PC310", place_of_rule)
    assert first.related[0][0].line == 3


@pytest.mark.parametrize("pattern", ["^[0-9]+$", "[0-9]+$", "^[0-9]+"])
def test_anchors_change_nothing(pattern: str) -> None:
    """Anchors do not change a pattern: it always matches whole texts."""
    parameter = f'<parameter name="n" length="3" pattern="{pattern}" default="{{}}"/>'
    assert not found(f'<schema name="s">{parameter.format("12")}</schema>')
    assert codes(found(f'<schema name="s">{parameter.format("12a")}</schema>')) == ["PC216"]


@pytest.mark.parametrize(
    "error",
    [
        ("PC208", '<module name="c" after="nowhere"/>'),
        ("PC303", '<union default="d"><module name="d" excludes="a"/><module name="e"/></union>'),
        ("PC304", '<module name="c" after="e"/><module name="e"/>'),
        ("PC307", '<rules><assert test="a b"/></rules>'),
        ("PC310", '<example valid="true"><prompt schema="s"><b/></prompt></example>'),
        ("PC305", '<union><module name="d"/><module name="e"/></union><scaffold modules="d e"/>'),
    ],
    ids=lambda error: error[0],
)
def test_module_that_can_never_be_used_is_reported_beside_errors(error: tuple[str, str]) -> None:
    """PC302 is reported even if the schema has an error of another kind."""
    code, more = error
    dead = '<module name="a" required="true"/><module name="b" excludes="a"/>'

    assert {"PC302", code} <= {*codes(found(f'<schema name="s">{dead}{more}</schema>'))}


@pytest.mark.parametrize(
    ("modules", "adds_nothing"),
    [
        ('<module name="a">A</module><scaffold modules="a"/>', True),
        ('<module name="a" required="true">A</module><module name="b">B</module><scaffold modules="a b"/>', True),
        ('<module name="a">A</module><module name="b" requires="a">B</module><scaffold modules="a b"/>', True),
        ('<module name="a">A</module><module name="b">B</module><scaffold modules="a b"/>', False),
        ('<module name="a" requires="b">A</module><module name="b">B</module><scaffold modules="a b"/>', False),
        (
            '<module name="a" required="true">A</module><module name="b" context="own">B</module>'
            '<scaffold modules="a b"/>',
            False,
        ),
        ('<module name="a">A<module name="c">C</module>A</module><scaffold modules="a a/c"/>', False),
    ],
)
def test_scaffold_that_adds_nothing_is_a_warning(modules: str, adds_nothing: bool) -> None:
    """A scaffold whose modules attend to each other anyway is reported; a scaffold that adds an encoding is not."""
    assert codes(found(f'<schema name="s">{modules}</schema>')) == ["PC313"] * adds_nothing


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("\n    first\n\u00a0   second\n  ", "3:1", "no-break space, U+00A0"),
        ("\n    first\n  \u00a0 second\n  ", "3:3", "no-break space, U+00A0"),
        ("\n    first\n\t\tsecond\n  ", "3:1", "tabs and spaces are mixed"),
        ("\n\t\tfirst\n        second\n\t", "3:1", "tabs and spaces are mixed"),
        ("\n    first\n    \u200bsecond\n", "3:5", "zero width space, U+200B"),
    ],
)
def test_indentation_that_stays_in_the_text_is_a_warning(text: str, where: str, message: str) -> None:
    """A no-break space, or tabs next to spaces, that `dedent` cannot remove is reported at its place."""
    (first,) = found(f'<schema name="s"><module name="a">{text}</module></schema>')
    in_prompt = parse_prompt(f'<prompt schema="s"><a/><user>{text}</user></prompt>').warnings

    for each in (first, *in_prompt):
        assert (each.code, each.severity, place(each)) == ("PC901", Severity.WARNING, where)
        assert message in each.message
    assert len(in_prompt) == 1


@pytest.mark.parametrize(
    "inside",
    [
        "\n    first\n      second\n    third\n  ",
        "\n    first\n    \tsecond\n  ",
        "first\n\n    second\n  \n\t",
        "100\u00a0km, and\n no more",
        "<text>\n    first\n\u00a0second</text>",
        '\n    f(<parameter name="x" length="2"/>)\n    g\n',
        '<module name="b" whitespace="preserve">\n    first\n\t\tsecond\n</module>',
    ],
)
def test_indentation_that_is_meant_is_no_warning(inside: str) -> None:
    """Relative indentation, no-break spaces inside a line, exact text and text that keeps all are not reported."""
    assert found(f'<schema name="s"><module name="a">{inside}</module></schema>') == ()


A = '<module name="a">A</module>'
CHOICE = '<parameter name="ward" length="3" type="choice" choices="{}"/>'
MEANT = [
    CHOICE.format("one, two|three"),
    '<parameter name="p" length="3" required="true" placeholder="x"/>',
    f'{A}<module name="b" requires="a">B</module>',
    f'{A}<module name="b">B</module><rules><exclude modules="a b"/><choose modules="a b" max="1"/></rules>',
    '<module name="a"><doc>Only names a case.</doc></module>',
    '<union default="none"><module name="none"/><module name="a">A</module></union>',
    f'{A}<module name="flag" requires="a"/>',
    f'{A}<module name="flag"/><rules><require if="flag" then="a"/></rules>',
    '<module name="a"><parameter name="p" length="3"/></module>',
    "<text>Hello {{ name }}, {ward}.</text>",
    r"\frac{ab}{cd}, f{ab}, ${HOME}, {1, 2}, {&quot;a&quot;: 1}, x^{ab}",
]


@pytest.mark.parametrize("content", MEANT)
def test_what_can_be_meant_has_no_warning(content: str) -> None:
    """Content with a similar form that has a meaning gets no warning."""
    assert not checked(f'<schema name="s">{content}</schema>').warnings


@pytest.mark.parametrize(
    ("prompt", "place"),
    [
        ('<a who="{{ name }}"/>', (2, 9)),
        ("<a/>\nFor {name}: why?", (3, 5)),
        ("<a/><user>For {{ name }}: why?</user>", (2, 15)),
    ],
)
def test_tags_in_prompts_are_warnings_at_their_place(prompt: str, place: tuple[int, int]) -> None:
    """A tag of a template in a prompt that is no template has a warning at the tag, or at the value with it."""
    (first,) = parse_prompt(f'<prompt schema="s">\n{prompt}</prompt>').warnings

    assert (first.code, (first.span.line, first.span.column)) == ("PC902", place)


@pytest.mark.parametrize("prompt", ['<a><arg name="who">{{ name }}</arg></a>', "<a/><text>{name}</text>"])
def test_exact_texts_of_prompts_keep_braces(prompt: str) -> None:
    """`<arg>` and `<text>` are data: their braces have no warning."""
    assert not parse_prompt(f'<prompt schema="s">{prompt}</prompt>').warnings


def test_values_of_templates_keep_braces(tmp_path: Path) -> None:
    """Braces in a rendered template come from a value, and have no warning."""
    path = tmp_path / "s.xml.j2"
    path.write_text('<schema name="s">Hello {{ name }}.</schema>')

    assert not check_schema(Schema.from_file(path, context={"name": "{{ name }}"})).warnings


def test_schemas_built_in_python_have_the_warnings() -> None:
    """Parameters and modules that are built in Python get the same warnings; their texts are data."""
    schema = Schema("s").module("a", "Hi {name}", slot("p", 3, required=True, default="x")).with_module(module("b"))

    assert {each.code for each in check_schema(schema).warnings} == {"PC112", "PC222"}
