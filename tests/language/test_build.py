"""Schemas built in Python: the same as written ones, printed and read again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcache.diagnostics import SchemaError
from promptcache.language import (
    Assert,
    Choose,
    Exclude,
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


def test_scaffolds_are_built():
    """A scaffold of a built schema is printed, read and checked as a written one."""
    for name in (None, "both"):
        printed = print_schema(QA.scaffold("notes/more", "long", name=name))
        (found,) = check_schema(parse_schema(printed)).scaffolds
        assert (found.name, found.members) == (name or "notes/more+long", ("notes/more", "long"))


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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ((slot("p", 0),), "length=0 of parameter 'p'"),
        ((slot("p", 2.5),), "length=2.5 of parameter 'p'"),
        ((slot("p", True),), "length=True of parameter 'p'"),
        ((slot("p", 2, kind="integer"),), "type='integer' of parameter 'p'"),
        ((slot("p", 2, kind="choice", choices="a|b"),), "choices='a|b' of parameter 'p'"),
        ((slot("p", 2, kind="choice", choices=("a|b", "c")),), "choices=('a|b', 'c') of parameter 'p'"),
        ((slot("p", 2, default=2),), "default=2 of parameter 'p'"),
        ((module("b", requires="c"),), "requires='c' of module 'b'"),
        ((module("b", required="true"),), "required='true' of module 'b'"),
        ((module("b", reserve=-1),), "reserve=-1 of module 'b'"),
        ((module("b", context="all"),), "context='all' of module 'b'"),
        ((module(7),), "name=7 of module 7"),
        ((7,), "7 cannot stand in module 'a'"),
        ((Schema("t"),), "cannot stand in module 'a'"),
    ],
)
def test_values_that_no_document_could_hold_are_refused(content, said):
    """What is given in Python is checked as what is written: by its type and its bounds, before anything else."""
    with pytest.raises(SchemaError) as caught:
        check_schema(Schema("s").module("a", *content))
    (found,) = caught.value.diagnostics
    assert found.code in {"PC102", "PC105"}
    assert said in found.message


@pytest.mark.parametrize(
    "schema",
    [
        Schema("s").with_module("a"),
        Schema("s").union(slot("p", 2)),
        Schema("s", separator=None),
        Schema("s").module("a").rule(Choose(modules=("a",), minimum=-1)),
        Schema("s").module("a").rule(Exclude(modules="a")),
        Schema("s").module("a").rule("a"),
    ],
)
def test_children_and_rules_are_checked_too(schema):
    """So are the schema itself, its rules, and what stands in a union or at the top."""
    with pytest.raises(SchemaError, match=r"PC10[25] .*(cannot stand|is not allowed)"):
        check_schema(schema)


def test_arguments_and_messages_are_text():
    """A number as an argument, or as a message, is told where it is given."""
    with pytest.raises(TypeError, match=r"argument 'lines' is text, not int: give str\(3\)"):
        Prompt("qa").use("long", lines=3)
    with pytest.raises(TypeError, match="a message is text, not NoneType"):
        Prompt("qa").user(None)


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
