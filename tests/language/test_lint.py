"""Tests of warnings about valid documents that are hardly meant, and of documents that are meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptcache.language import Schema, check_schema, module, parse_prompt, parse_schema, slot

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
