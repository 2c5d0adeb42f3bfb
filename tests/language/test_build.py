"""Schemas built in Python: the same as written ones, printed and read again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from promptcache.diagnostics import SchemaError
from promptcache.language import (
    Assert,
    Prompt,
    Schema,
    check_schema,
    module,
    parse_schema,
    print_schema,
    resolve_prompt,
    slot,
    text_of,
)
from tests.language.documents import outline

QA = (
    Schema("qa", version="1.0")
    .system("Answer from the notes.")
    .module("notes", "Low tide < 1 m.", module("more", " & more"), required=True)
    .union(
        module("brief", "Be brief."),
        module("long", "Take ", slot("lines", 4, default="ten"), " lines."),
        default="brief",
    )
    .rule(Assert(test="long implies notes/more", message="Long answers need more."))
    .user("Question: ")
)


def test_a_built_schema_is_printed_and_read_as_the_same():
    """What is built checks to the same content as its printed document."""
    built, read = check_schema(QA), check_schema(parse_schema(print_schema(QA)))
    assert outline(read.children) == outline(built.children)
    assert read.guaranteed.keys() == built.guaranteed.keys()
    assert print_schema(read.source) == print_schema(QA)


def test_prompts_resolve_against_a_built_schema():
    """A built prompt selects from a built schema."""
    prompt = Prompt("qa").use("notes/more").use("long", lines="two").text("Why?")
    assert "Low tide < 1 m." in text_of(resolve_prompt(prompt, check_schema(QA)))


def test_building_changes_nothing():
    """Every method gives a new schema and leaves the old one as it was."""
    first = Schema("s")
    second = first.with_module(module("a", "A"))
    assert first.children == ()
    assert len(second.module("b").children) == 2


@given(text=st.text())
def test_texts_are_data(text):
    """Whatever a text holds, printing and reading gives one module with that text, or refuses what XML cannot hold."""
    schema = Schema("s").module("m", text)
    try:
        read = parse_schema(print_schema(schema))
    except SchemaError as error:
        refused = error.diagnostics[0].code
    else:
        assert outline(check_schema(read).children) == outline(check_schema(schema).children)
        return
    assert refused == "PC011"
