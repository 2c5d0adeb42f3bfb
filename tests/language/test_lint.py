"""Tests of warnings about valid documents that are hardly meant, and of documents that are meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptcache.diagnostics import Severity
from promptcache.language import Schema, check_schema, module, parse_prompt, parse_schema, slot

A = '<module name="a">A</module>'
CHOICE = '<parameter name="ward" length="3" type="choice" choices="{}"/>'
CASES = [
    (CHOICE.format("A1, B2"), "PC223", 'separate choices by |, as in choices="A1|B2"'),
    (CHOICE.format("red; green; blue"), "PC223", 'choices="red|green|blue"'),
    (CHOICE.format("A1 B2"), "PC223", 'choices="A1|B2"'),
    (CHOICE.format("A1"), "PC223", "add choices"),
    (CHOICE.format("A1 | B2"), "PC223", 'write choices="A1|B2"'),
    ('<parameter name="p" length="3" required="true" default="x"/>', "PC222", "write it as placeholder"),
    ('<union required="true" default="a"><module name="a">A</module></union>', "PC222", "remove the default"),
    ('<module name="a" requires="a">A</module>', "PC315", "name another module"),
    ('<module name="a">A<module name="b" requires="/a">B</module></module>', "PC315", "name another module"),
    (f'{A}<rules><exclude modules="a"/></rules>', "PC315", "at most one"),
    (f'{A}<rules><choose modules="a" min="0"/></rules>', "PC315", "raise min"),
    ('<module name="a"> </module>', "PC112", "write its text"),
    ("Hello {{ name }}.", "PC902", "rename a template to *.xml.j2"),
    ("{% for each in all %}Hello{% endfor %}", "PC902", "rename a template"),
    ("The ward is {ward}.", "PC902", "a schema can declare a slot"),
    ('<parameter name="p" length="9" default="{{ name }}"/>', "PC902", "a schema can declare a slot"),
]
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


@pytest.mark.parametrize(("content", "code", "fix"), CASES)
def test_what_is_hardly_meant_is_a_warning_with_a_fix(content: str, code: str, fix: str) -> None:
    """A mistake that the rules of the language allow gets one warning with a fix; the schema stays valid."""
    first, *others = check_schema(parse_schema(f'<schema name="s">{content}</schema>')).warnings

    assert (first.code, first.severity) == (code, Severity.WARNING)
    assert fix in (first.help or "")
    assert {each.code for each in others} <= {code}


@pytest.mark.parametrize("content", MEANT)
def test_what_can_be_meant_has_no_warning(content: str) -> None:
    """Content with a similar form that has a meaning gets no warning."""
    assert not check_schema(parse_schema(f'<schema name="s">{content}</schema>')).warnings


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
