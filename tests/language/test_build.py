"""Tests of schemas built in Python, and of printing and parsing them."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import InvalidValue, PromptError, SchemaError
from promptcache.language import (
    Assert,
    CheckedSchema,
    Choose,
    Collection,
    Context,
    Exclude,
    ParameterType,
    Placement,
    Prompt,
    Repair,
    Require,
    Schema,
    Whitespace,
    check_schema,
    format_document,
    module,
    parse_schema,
    print_schema,
    resolve_prompt,
    slot,
    text_of,
)
from promptcache.language.checked import CheckedTurn
from promptcache.language.syntax.nodes import IN_PYTHON, Module, Role, Turn
from tests.conftest import law_examples
from tests.language.documents import checked, faults, outline
from tests.strategies import schemas

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
    """A built schema has the same checked content as its printed document."""
    built, read = check_schema(QA), checked(print_schema(QA))
    assert outline(read.children) == outline(built.children)
    assert read.guaranteed.keys() == built.guaranteed.keys()
    assert print_schema(read.source) == print_schema(QA)
    assert format_document(print_schema(QA)) == print_schema(QA)


@pytest.mark.parametrize("repair", [None, "none", "first-20%", "all"])
def test_the_repair_of_a_schema_is_printed_and_read(repair: str | None):
    """The attribute `repair` is the same in Python, in a document, and in the checked schema."""
    built = Schema("s", repair=repair).text("a")
    read = checked(print_schema(built))
    assert read.source.repair == repair
    assert read.repair == (None if repair is None else Repair.parse(repair)) == check_schema(built).repair


def test_scaffolds_are_built():
    """A scaffold of a built schema is printed, parsed and checked like a written one."""
    for name in (None, "both"):
        printed = print_schema(QA.scaffold("notes/more", "long", name=name))
        (found,) = checked(printed).scaffolds
        assert (found.name, found.members) == (name or "notes/more+long", ("notes/more", "long"))


def nested(num_levels: int) -> Schema:
    """Return a schema whose modules are in one another."""
    inner = module("a", "x")
    for _ in range(num_levels - 1):
        inner = module("a", inner)
    return Schema("s").with_module(inner)


def test_built_schemas_are_as_deep_as_their_documents():
    """The deepest schema is printed and read; deeper ones are refused, however deep they are. Exact text is an element."""
    deepest = nested(48)
    assert checked(print_schema(deepest)).modules.keys() == check_schema(deepest).modules.keys()
    for num_levels in (49, 600):
        with pytest.raises(SchemaError, match=r"PC005 .* nested more than 50 deep"):
            check_schema(nested(num_levels))


def test_long_separators_are_printed_and_read():
    """The limit of a separator counts its characters, not those of its escapes."""
    for separator in ("\n" * 200, "\\" * 200):
        built = Schema("s").module("m", "x", separator=separator)
        assert print_schema(checked(print_schema(built)).source) == print_schema(built)


def is_open(schema: Schema) -> bool:
    """Return whether prompts continue a turn of the schema."""
    return any(isinstance(item, CheckedTurn) and item.open for item in check_schema(schema).children)


@pytest.mark.parametrize(
    "add",
    [
        lambda schema: schema.with_module(module("source", "From the almanac.", requires=("notes",))),
        lambda schema: schema.module("source", "From the almanac."),
        lambda schema: schema.union(module("source", "From the almanac.")),
        lambda schema: schema.text("From the almanac.", slot("edition", 2)),
    ],
    ids=["with_module", "module", "union", "text"],
)
def test_what_is_added_is_inside_the_last_turn(add: Callable[[Schema], Schema]):
    """Modules, unions and text are added at the end of the last turn, even if items without text follow it."""
    after = QA.rule(Require(condition="long", consequence="notes")).scaffold("notes", "long").module("empty")
    read = parse_schema(f"{print_schema(QA)[: -len('</schema>') - 1]}\n\n  <doc>Ends.</doc>\n</schema>\n")
    for schema in (QA, after, read):
        longer = add(schema)
        assert is_open(schema)
        assert is_open(longer)
        assert is_open(parse_schema(print_schema(longer)))
        assert not [each for each in check_schema(longer).warnings if each.code == "PC518"]
        prompt = Prompt("qa").use("notes").text("Why?")
        prompt = prompt.use("source") if "source" in check_schema(longer).modules else prompt
        text = text_of(resolve_prompt(prompt, check_schema(longer)))
        assert re.search("Question: \n?From the almanac.\nWhy\\?$", text)


def test_modules_with_turns_are_no_part_of_a_turn():
    """A module that contains turns is added behind the last turn, and so are later modules."""
    schema = QA.module("story", Turn(role=Role.USER, children=(), span=IN_PYTHON)).module("more", "And more.")
    assert [each.name for each in schema.children[-2:] if isinstance(each, Module)] == ["story", "more"]


@settings(max_examples=law_examples(0.2))
@given(drawn=schemas(includes=False))
def test_an_open_turn_stays_open(drawn: CheckedSchema):
    """Adding a module to any schema does not change its final turn."""
    longer = drawn.source.with_module(module("added", "Added."))
    assert is_open(longer) == is_open(drawn.source)


def test_choices_can_be_given_as_their_texts():
    """A text that names a choice is that choice, wherever Python code gives it."""
    made, meant = (
        Schema(
            "s", context=choose(Context.OWN), whitespace=choose(Whitespace.PRESERVE), positions=choose(Placement.FIXED)
        ).with_module(module("a", slot("p", 2, kind=choose(ParameterType.INT)), context=choose(Context.OWN)))
        for choose in (str, lambda choice: choice)
    )

    assert made == meant
    assert print_schema(made) == print_schema(meant)
    assert check_schema(made).modules["a"].context is Context.OWN


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
        ((7,), "7 is not allowed in module 'a'"),
        ((Schema("t"),), "is not allowed in module 'a'"),
    ],
)
def test_values_that_no_document_could_hold_are_refused(content, said):
    """Values given in Python are checked like written ones: by type and bounds, before all other checks."""
    (found,) = faults(SchemaError, check_schema, Schema("s").module("a", *content))
    assert found.code in {"PC102", "PC105"}
    assert said in found.message


@pytest.mark.parametrize(
    "schema",
    [
        Schema("s").with_module("a"),
        Schema("s").union(slot("p", 2)),
        Schema("s", separator=None),
        Schema("s", repair="most").text("a"),
        Schema("s", repair=2).text("a"),
        Schema("s").module("a").rule(Choose(modules=("a",), minimum=-1)),
        Schema("s").module("a").rule(Exclude(modules="a")),
        Schema("s").module("a").rule(Exclude(modules=())),
        Schema("s").module("a").rule(Choose(modules=(), minimum=1)),
        Schema("s").module("a").rule(Choose(modules=("a",))),
        Schema("s").module("a").scaffold(),
        Schema("s", children=(Collection(name="k", children=(), span=IN_PYTHON, listed={"a": "A"}),)),
        Schema("s").module("a").rule("a"),
    ],
)
def test_children_and_rules_are_checked_too(schema):
    """The schema itself, its rules, and children of unions and of the top level are checked too."""
    with pytest.raises(SchemaError, match=r"PC10[25] .*is not allowed|PC104 a Choose needs minimum or maximum"):
        check_schema(schema)


@pytest.mark.parametrize("value", [True, None, b"3", [3], float("nan"), float("inf"), 10**400, "3\udc80"])
def test_arguments_are_text_or_numbers(value):
    """Other arguments, and text that no tokenizer can read, are refused in the call."""
    with pytest.raises(
        InvalidValue, match=r"argument lines=.* is not allowed: text without lone surrogates, or a finite"
    ):
        Prompt("qa").use("long", lines=value)
    with pytest.raises(InvalidValue, match="argument lines"):
        Prompt("qa").fill(lines=value)


@pytest.mark.parametrize(
    ("value", "text"), [(5, "5"), (-3, "-3"), (0.5, "0.5"), (1e22, "1e+22"), (10**300, str(10**300))]
)
def test_numbers_are_written_as_python_writes_them(value, text):
    """A number becomes its text, which numeric slots accept; integer slots refuse fractions."""
    schema = check_schema(
        Schema("s").text(slot("whole", 400, kind=ParameterType.INT), slot("any", 400, kind=ParameterType.NUMBER))
    )

    filled = resolve_prompt(Prompt("s").fill(any=value).text("?"), schema).arguments

    assert [each.text for each in filled] == [text]
    if isinstance(value, float):
        with pytest.raises(PromptError, match="it takes a whole number"):
            resolve_prompt(Prompt("s").fill(whole=value), schema)


@pytest.mark.parametrize("value", [None, 5, b"x", ["x"], "\udc80"])
@pytest.mark.parametrize("method", ["text", "system", "user", "assistant"])
def test_messages_are_text(method, value):
    """A message of another type, or with a lone surrogate, is refused in the call; a list of modules gets its fix."""
    with pytest.raises(InvalidValue, match=r"text=.* is not allowed: text without lone surrogates is expected"):
        getattr(Prompt("qa"), method)(value)
    with pytest.raises(InvalidValue, match=r"module=\['a', 'b'\] is not allowed: call use\(path\) for each module"):
        Prompt("qa").use(["a", "b"])


def test_a_lone_surrogate_is_shown_where_it_stands():
    """For a long text, the message shows the part around the surrogate."""
    with pytest.raises(InvalidValue, match=r"text=' {8}before \\udc80 after'"):
        Prompt("qa").user("x" * 1000 + " " * 8 + "before \udc80 after")
    with pytest.raises(SchemaError, match=r"PC105 text='.*\\udc80.*' of a text is not allowed"):
        check_schema(Schema("s").module("a", "x\udc80"))


@given(text=st.text())
def test_texts_are_data(text):
    """Printing and parsing keep any text, or refuse characters that XML cannot represent."""
    schema = Schema("s").module("m", text)
    try:
        read = checked(print_schema(schema))
    except SchemaError as error:
        refused = error.diagnostics[0].code
    else:
        assert outline(read.children) == outline(check_schema(schema).children)
        return
    assert refused == "PC011"
