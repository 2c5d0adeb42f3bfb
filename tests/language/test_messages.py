"""Tests of diagnostics: the place of the cause, and the suggested text."""

from __future__ import annotations

import pytest

from promptcache.diagnostics import Diagnostic, LanguageError, Severity
from promptcache.language import check_schema, parse_prompt, parse_schema, resolve_prompt

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
        return check_schema(parse_schema(schema)).warnings
    except LanguageError as error:
        return error.diagnostics


def found_in(prompt: str, schema: str = LAW) -> Diagnostic:
    """Return the first diagnostic of a prompt."""
    with pytest.raises(LanguageError) as caught:
        resolve_prompt(parse_prompt(prompt), check_schema(parse_schema(schema)))
    return caught.value.diagnostics[0]


def place(diagnostic: Diagnostic) -> str:
    """Return the line and column of a diagnostic."""
    return f"{diagnostic.span.line}:{diagnostic.span.column}"


@pytest.mark.parametrize(
    ("prompt", "advice"),
    [
        ("<facts/>", 'add <matter title="…"/>'),
        ("<summary/>", 'add <matter title="…"><pages range="…"/></matter>'),
        ('<matter title="x"/><summary/>', 'add <use module="matter/pages" range="…"/>'),
    ],
)
def test_what_is_to_be_added_has_its_required_arguments(prompt: str, advice: str) -> None:
    """The reference in the help has all required arguments."""
    assert found_in(f'<prompt schema="law">{prompt}</prompt>').help == advice


@pytest.mark.parametrize(
    ("prompt", "advice"),
    [
        ("<plain-language/>", "write <style><plain-language/></style>"),
        ('<matter title="x"><formal/></matter>', "write <style><formal/></style> at the top level"),
    ],
)
def test_module_that_is_inside_another_is_shown_nested(prompt: str, advice: str) -> None:
    """For a module named outside its parent, the help shows the nested reference."""
    first = found_in(f'<prompt schema="law">{prompt}</prompt>')

    assert first.code == "PC401"
    assert first.help is not None
    assert first.help.endswith(advice)


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
    assert [each.code for each in found(f'<schema name="s">{parameter.format("12a")}</schema>')] == ["PC216"]


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

    codes = {each.code for each in found(f'<schema name="s">{dead}{more}</schema>')}

    assert {"PC302", code} <= codes


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
    assert [each.code for each in found(f'<schema name="s">{modules}</schema>')] == ["PC313"] * adds_nothing


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
    ],
)
def test_indentation_that_is_meant_is_no_warning(inside: str) -> None:
    """Relative indentation, no-break spaces inside a line and exact text are not reported."""
    assert found(f'<schema name="s"><module name="a">{inside}</module></schema>') == ()


def test_other_modes_of_whitespace_are_not_concerned() -> None:
    """Only `dedent` removes indentation, so other modes have no warning."""
    text = "\n    first\n\t\tsecond\n"
    assert found(f'<schema name="s" whitespace="preserve"><module name="a">{text}</module></schema>') == ()
