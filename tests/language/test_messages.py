"""Tests of diagnostics: the place of the cause, and the suggested text."""

from __future__ import annotations

import pytest

from promptcache.diagnostics import Diagnostic, LanguageError, Severity
from promptcache.language import Prompt, check_schema, parse_prompt, parse_schema, resolve_prompt

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


PATHS = """<schema name="s">
  <module name="patient">Ada <parameter name="name" length="4"/>.</module>
  <union name="reader"><module name="lay">Plain.</module><module name="doctor">Codes.</module></union>
  <module name="drugs"><module name="apixaban">5 mg.</module></module>
  <module name="lab">INR <parameter name="inr" length="4"/>.</module>
  <module name="day"><parameter name="n" length="4" type="int"/></module>
</schema>"""


@pytest.mark.parametrize(
    ("prompt", "code", "advice"),
    [
        ("<patient>Ada</patient>", "PC412", 'write <arg name="…">…</arg> with the name of the slot'),
        ("<patient><name>Ada</name></patient>", "PC412", '<arg name="name">…</arg>, or name="…"'),
        ('<patient><parameter name="who">Ada</parameter></patient>', "PC412", '<arg name="who">…</arg>'),
        ("<patient/> and <lay/>", "PC412", "move the text after the last reference, <lay>"),
        ("<patient/><human>Why?</human>", "PC412", "write <user>"),
        ("<patient/>What is <p>?</p>", "PC412", "use &lt; for <"),
        ("<patient/><user>What is <b>bold</b>?</user>", "PC102", "use &lt; for <"),
        ("<tool>x</tool><patient/>", "PC102", "a turn is <system>, <user> or <assistant>"),
        ("<use name='lay'/>", "PC104", 'write <use module="lay"/>'),
        ('<patient><arg name="name" value="Ada"/></patient>', "PC103", '<arg name="…">Ada</arg>'),
        ("<reader><lay/></reader>", "PC401", "name one of its members, such as <lay>"),
        ("<drugs.apixaban/>", "PC401", "/drugs/apixaban: write <drugs><apixaban/></drugs>"),
        ('<use module="drugs.apixaban"/>', "PC401", "/drugs/apixaban: write <drugs><apixaban/></drugs>"),
        ('<use module="drugs\\apixaban"/>', "PC207", "names joined by slashes"),
        ("<strong/>", "PC401", "use &lt; for <"),
        ('<module name="lay"/>', "PC401", "write <lay/>"),
        ('<use module="lay lab"/>', "PC207", "name one module here"),
        ('<message role="user">Why?</message>', "PC412", "a turn is written as <user>"),
        ('<patient inr="2"/>', "PC402", "'lab' has this parameter"),
        ('<day n="{{ n }}"/>', "PC420", "rename the file to *.xml.j2"),
    ],
)
def test_help_names_what_a_prompt_most_likely_means(prompt: str, code: str, advice: str) -> None:
    """Arguments, turns, paths and text in forms of other formats get the form of this language as help."""
    first = found_in(f'<prompt schema="s">{prompt}</prompt>', PATHS)

    assert first.code == code
    assert advice in (first.help or "")


def test_paths_with_dots_in_python_get_the_path() -> None:
    """`use("a.b")` gets the path with slashes as help."""
    with pytest.raises(LanguageError) as caught:
        resolve_prompt(Prompt("s").use("drugs.apixaban"), check_schema(parse_schema(PATHS)))

    assert "/drugs/apixaban" in (caught.value.diagnostics[0].help or "")


@pytest.mark.parametrize(
    ("content", "code", "advice"),
    [
        ('<param name="p" length="3"/>', "PC101", "did you mean <parameter>?"),
        ("<human>Hi</human>", "PC101", "did you mean <user>?"),
        ("Text with <b>bold</b>.", "PC101", "use &lt; for <"),
        ("<unheard/>", "PC101", "<schema> can contain: "),
        ('<rules><forbid modules="a b"/></rules>', "PC101", "did you mean <exclude>?"),
        ('<include src="x.xml"/>', "PC104", 'add href="…"'),
        ('<parameter name="p" size="3" length="3"/>', "PC103", "did you mean 'length'?"),
        ('<parameter name="p" length="3" type="string"/>', "PC105", "did you mean 'text'?"),
        ('<parameter name="p" length="3">Ada</parameter>', "PC106", 'default="Ada"'),
        ('<scaffold modules="a b"><module name="m">M</module></scaffold>', "PC102", "write <scaffold …/>"),
        ('<module name="my module">M</module>', "PC201", "write 'my-module'"),
        ('<module name="{{ name }}">M</module>', "PC201", "rename the file to *.xml.j2"),
        ('<module name="c" requires="u">C</module>', "PC208", "such as 'd'; a <require> can name any of them, d or e"),
        ('<module name="c" requires="f.g">C</module>', "PC208", "join names by slashes, /f/g"),
        ('<module name="c" requires="a;b">C</module>', "PC207", "separate paths by spaces"),
        ('<module name="c" requires="l/m">C</module>', "PC208", "write the rule into <rules>"),
        ('<rules><require when="a" then="b"/></rules>', "PC104", 'add if="…"'),
        ('<parameter name="p" length="3" type="bool"/>', "PC105", "did you mean 'choice'?"),
        ('<module name="c" cache="never">C</module>', "PC105", 'write cache="false"'),
        ('<module name="2024-report">C</module>', "PC201", "write '_2024-report'"),
        ('<module name="c" after="c">C</module>', "PC304", "change the order"),
        ('<module name="c"><requires>b</requires></module>', "PC101", 'requires="…"'),
        ('<module name="c" text="Hello"/>', "PC103", "<module …>Hello</module>"),
        ('<message role="user">Hi</message>', "PC101", "a turn is written as <user>"),
        ('<prompt schema="s"/>', "PC101", "inside of <example>"),
        ('<collection name="k" required="true"/>', "PC103", "did you mean 'min'?"),
        ('<rules><assert test="a xor b"/></rules>', "PC307", "(a or b) and not (a and b)"),
        ('<rules><assert test="a.n"/></rules>', "PC208", "not to a parameter of it"),
        ("Use List<String> here.", "PC001", "for a literal < write &lt;"),
        ('<example contains="B"><prompt schema="s"><a/></prompt></example>', "PC312", "its text is 'A'"),
    ],
)
def test_help_names_what_a_schema_most_likely_means(content: str, code: str, advice: str | None) -> None:
    """Elements, attributes, values and paths of other formats get those of this language as help."""
    union = '<union name="u"><module name="d">D</module><module name="e">E</module></union>'
    inner = '<module name="f">F<module name="g">G</module></module>'
    inner += '<collection name="l"><module name="m">M</module></collection>'

    first = found(f'<schema name="s">{MODULES}{union}{inner}{content}</schema>')[0]

    assert first.code == code
    assert advice is None or advice in (first.help or "")
