"""What is fuzzed: each target takes any bytes, and raises only where something is wrong with us.

Errors of ours are answers. What is left – any other exception, and an assertion here that a law is broken – is a finding.
"""

from collections.abc import Callable
from functools import cache

from promptcache.cli.documents import InputDocument
from promptcache.diagnostics import LanguageError, SchemaError
from promptcache.language import (
    CheckedSchema,
    check_schema,
    count_combinations,
    parse_prompt,
    parse_schema,
    print_schema,
    resolve_prompt,
)
from promptcache.language.load import format_document
from promptcache.language.syntax.templates import render_template

DIVIDER = b"\n====\n"
"""Between the schema and the prompt of one input."""

CONTEXT: dict[str, object] = {
    "n": 3,
    "name": "a<&>\"'",
    "yes": True,
    "nothing": None,
    "names": ["a", "b", "c"],
    "deep": {"items": [1, 2.5, {"key": "value"}], "empty": []},
}


def fuzz_schema(data: bytes) -> None:
    """Read, check and count a schema; print every finding; print a valid schema and read it again."""
    try:
        schema = parse_schema(data, source="s.xml")
        checked = check_schema(schema)
    except LanguageError as error:
        _show(error)
        return
    count_combinations(checked.rules)
    try:
        printed = print_schema(schema)
    except SchemaError:
        return  # what refers to files next to the document cannot be printed without them
    assert print_schema(parse_schema(printed)) == printed


def fuzz_prompt(data: bytes) -> None:
    """Read and resolve a schema and a prompt of it, or report the errors of the prompt."""
    before, divider, after = data.partition(DIVIDER)
    checked = _checked(before) if divider else _standard()
    prompt_data = after if divider else before
    document = InputDocument(name="p.xml", path=None, data=prompt_data)
    _ = document.kind, document.schema_name
    try:
        prompt = parse_prompt(prompt_data, source="p.xml")
        if checked is not None:
            resolve_prompt(prompt, checked)
        printed = prompt.to_xml()
    except LanguageError as error:
        _show(error)
        return
    assert parse_prompt(printed).to_xml() == printed


def fuzz_template(data: bytes) -> None:
    """Render a template within its limits, and read the result as a schema."""
    try:
        parse_schema(render_template(data, CONTEXT, "t.xml.j2", SchemaError).text, source="t.xml.j2")
    except LanguageError as error:
        _show(error)


def fuzz_format(data: bytes) -> None:
    """Format a document; the result is a document that formatting does not change."""
    try:
        formatted = format_document(data, source="d.xml")
    except LanguageError as error:
        _show(error)
        return
    assert format_document(formatted) == formatted


TARGETS: dict[str, Callable[[bytes], None]] = {
    "schema": fuzz_schema,
    "prompt": fuzz_prompt,
    "template": fuzz_template,
    "format": fuzz_format,
}


def _show(error: LanguageError) -> None:
    for diagnostic in error.diagnostics:
        assert diagnostic.span.line >= 1
        assert diagnostic.span.column >= 1
    assert error.excerpt()


def _checked(data: bytes) -> CheckedSchema | None:
    try:
        return check_schema(parse_schema(data))
    except LanguageError:
        return None


_STANDARD = b"""<schema name="s" version="1.2">
  <system>Always. <module name="plan" required="true">Plan <parameter name="days" length="4" type="int"/></module></system>
  <parameter name="top" length="3" default="x"/>
  <module name="outer">Outer <module name="inner" requires="/other">Inner</module>
    <union name="u"><module name="a">A <parameter name="p" length="4" required="true"/></module><module name="b">B</module></union>
  </module>
  <union name="city" default="miami"><module name="miami">M <parameter name="hotel" length="9" type="choice" choices="one|two"/></module>
    <module name="paris">P <parameter name="code" length="9" pattern="[a-z]+\\d{2,3}"/></module></union>
  <module name="other" excludes="paris">Other <parameter name="line" length="9" type="line"/></module>
  <rules><choose min="1" max="2" modules="outer other paris"/><assert test="outer/a implies not other"/></rules>
  <user>Ask</user>
</schema>"""


@cache
def _standard() -> CheckedSchema:
    return check_schema(parse_schema(_STANDARD))
