"""Collections in schema documents and prompts."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from promptcache.diagnostics import Diagnostic, PromptError, SchemaError, Span
from promptcache.language import (
    CheckedSchema,
    Prompt,
    Schema,
    as_name,
    check_schema,
    format_document,
    module,
    new_member,
    parse_members,
    parse_prompt,
    parse_schema,
    print_schema,
    prompt_grammar,
    resolve_prompt,
    write_members,
)
from promptcache.language.syntax.names import is_name
from tests import strategies
from tests.language import documents
from tests.language.documents import codes, faults
from tests.laws.laws import shape
from tests.laws.subject import published_grammar
from tests.speed import is_within
from tests.strategies.collections import collection_schemas

SCHEMA = """<schema name="kb">
  <module name="tone">Be kind.</module>
  <collection name="notes" min="1" max="2">
    <doc>One note for each topic.</doc>
    <module name="gate">The gate
      is blue.</module>
    <module name="cook" whitespace="collapse">The cook
      is Mara.</module>
    <module name="été"><text> as it is </text></module>
  </collection>
  <module name="end">Well:</module>
</schema>"""
FROM_FILE = SCHEMA.replace('max="2"', 'max="2" src="notes.jsonl"')


def checked(text: str = SCHEMA, **options: Any) -> CheckedSchema:
    return documents.checked(text, **options)


def refused(inside: str, text: str = SCHEMA) -> tuple[Diagnostic, ...]:
    """Return the faults of a prompt."""
    prompt = parse_prompt(f'<prompt schema="kb">{inside}</prompt>')
    return faults(PromptError, resolve_prompt, prompt, checked(text))


def collection_of(schema: CheckedSchema, path: str = "notes") -> Any:
    return schema.modules[path].collection


def test_members_have_final_texts() -> None:
    """The whitespace rules of the collection apply, unless a member has its own or its text is exact."""
    collection = collection_of(checked())

    texts = {name: member.text for name, member in collection.members.items()}
    assert texts == {"gate": "The gate\nis blue.", "cook": "The cook is Mara.", "été": " as it is "}
    assert collection.lead == "\n"


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("<notes><coook/></notes>", "PC401 collection 'notes' has no member 'coook'"),
        ("<notes/>", "PC423 collection 'notes' takes at least 1 members, and the prompt names 0"),
        ("<notes><cook/><gate/><été/></notes>", "PC423 collection 'notes' takes at most 2 members, and the prompt"),
        ("<notes><cook/><cook/></notes>", "PC405 module 'notes/cook' is named twice"),
        ('<notes><cook place="x"/></notes>', "PC402 module 'notes/cook' has no parameter 'place'"),
        ("<notes><cook><x/></cook></notes>", "PC401 there is no module 'cook' in 'notes'"),
        ("<tone/>", "PC406 "),
    ],
)
def test_wrong_members_are_refused(inside: str, message: str) -> None:
    """Each fault names the collection or member."""
    assert any(f"{each.code} {each.message}".startswith(message) for each in refused(inside)), refused(inside)


def test_members_of_an_engine_take_the_place_of_declared_ones() -> None:
    """`resolve_prompt` takes the members that there are now."""
    known = {"notes": {"lamp": new_member("lamp", "The lamp is new.")}}
    prompt = parse_prompt('<prompt schema="kb"><notes><lamp/></notes></prompt>')

    selection = resolve_prompt(prompt, checked(), known)

    assert selection.members["notes/lamp"].text == "The lamp is new."
    with pytest.raises(PromptError, match="PC401"):
        resolve_prompt(prompt, checked())


RULED = SCHEMA.replace(' min="1" max="2"', "").replace(
    "</schema>",
    """<rules>
      <require if="notes/gate and not end" then="tone or notes/cook" message="The gate needs more."/>
      <exclude modules="notes/été notes/cook"/>
      <choose modules="notes/late notes/gate tone" max="1"/>
    </rules></schema>""",
)


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        (
            "<notes><gate/></notes>",
            'PC418 The gate needs more. | add <end/> or <use module="notes/cook"/> or <tone/>',
        ),
        (
            "<notes><été/><cook/></notes>",
            "PC418 a rule of the schema is broken: 'notes/été' and 'notes/cook' exclude each other | remove one of",
        ),
        ("<tone/><notes><gate/></notes>", "PC419 a rule of the schema is broken: at most 1 of 'notes/late', "),
    ],
)
def test_rules_name_members(inside: str, expected: str) -> None:
    """Rules of <rules> see the members that a prompt names, with their message, the place of a member, and a fix."""
    (fault,) = refused(inside, RULED)

    assert f"{fault.code} {fault.message} | {fault.help}".startswith(expected)
    assert fault.span.column > len('<prompt schema="kb">')


@pytest.mark.parametrize(
    "inside", ["<tone/><notes><cook/></notes>", "<notes><gate/><cook/></notes>", "<notes><gate/></notes><end/>"]
)
def test_rules_over_members_can_be_kept(inside: str) -> None:
    """Members and modules that keep the rules are accepted."""
    documents.selected(f'<prompt schema="kb">{inside}</prompt>', RULED)


def test_rules_name_members_that_come_later() -> None:
    """A member that the schema does not declare is a warning; attributes of modules cannot name members."""
    schema = checked(RULED)
    assert [each.code for each in schema.warnings] == ["PC226"]
    assert "'late'" in schema.warnings[0].message

    known = {"notes": {name: new_member(name, "A note.") for name in ("late", "gate")}}
    prompt = parse_prompt('<prompt schema="kb"><notes><late/><gate/></notes><end/></prompt>')
    with pytest.raises(PromptError, match="PC419"):
        resolve_prompt(prompt, schema, known)
    with pytest.raises(SchemaError, match=r"PC208.*member of a collection"):
        checked(SCHEMA.replace('name="end"', 'name="end" requires="notes/gate"'))


@pytest.mark.parametrize(
    ("rule", "help_text"),
    [
        ('<require if="short" then="c/a"/>', 'add <use module="c/a"/>'),
        ('<choose modules="short long c/a" min="2"/>', "add "),
        ('<assert test="short implies c/a"/>', 'add <use module="c/a"/>'),
    ],
)
def test_a_default_breaks_a_rule_over_members(rule: str, help_text: str) -> None:
    """The prompt is the place of a fault that a default of a union makes."""
    text = f"""<schema name="kb"><union default="short"><module name="short">S</module><module name="long">L</module>
    </union><collection name="c"><module name="a">A</module></collection><rules>{rule}</rules></schema>"""

    (fault,) = refused("Hi", text)
    assert (fault.span.column, fault.help.startswith(help_text)) == (1, True)


def test_rules_over_members_are_included() -> None:
    """Rules of an included file move with their collection."""
    schema = checked('<schema name="s"><include href="kb.xml"/></schema>', folder={"kb.xml": RULED})
    assert {path for rule in schema.rules.of_members for path in rule.modules} == {
        path for rule in checked(RULED).rules.of_members for path in rule.modules
    }


def test_collections_and_their_members_are_included() -> None:
    """An `include` takes collections of a file, and a collection takes the modules of a file as members."""
    files = {
        "all.xml": SCHEMA,
        "more.xml": '<schema name="more" separator=" "><module name="x">X</module><module name="y">Y</module></schema>',
    }
    text = """<schema name="s" separator="; ">
      <module name="old"><include href="all.xml"/></module>
      <collection name="own"><include href="more.xml"/></collection>
    </schema>"""
    schema = checked(text, folder=files)

    old, own = (collection_of(schema, path) for path in ("old/notes", "own"))
    assert [*old.members] == ["gate", "cook", "été"]
    assert old.lead == "; "
    assert {name: each.text for name, each in own.members.items()} == {"x": "X", "y": "Y"}


LISTED = '{"name": "lamp", "text": " The lamp\\n is new."}\n\n {"text": "Ajar.", "name": "door"} \r\n'


def test_members_of_a_file_come_behind_declared_ones() -> None:
    """`src` adds the members of JSON lines with their exact text, also from an included file in another folder."""
    text = SCHEMA.replace('max="2"', 'max="2" src="more/notes.jsonl"')
    outer = '<schema name="outer"><include href="in/kb.xml"/></schema>'
    files = {"in/kb.xml": text, "in/more/notes.jsonl": LISTED}
    schema = checked(outer, folder=files)

    found = collection_of(schema)
    assert [*found.members] == ["gate", "cook", "été", "lamp", "door"]
    assert found.members["lamp"].text == " The lamp\n is new."
    assert str(found.members["door"].span) == "in/more/notes.jsonl:3:1"
    assert 'src="in/more/notes.jsonl"' in print_schema(schema.source)
    assert shape(checked(print_schema(schema.source), folder=files)) == shape(schema)
    assert not schema.warnings


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("{", "PC224", "not JSON"),
        ('{"name": "a", "text": "A"} {}', "PC224", "more behind"),
        ("[" * 100_000, "PC224", "not JSON"),
        ('{"name": "a"}', "PC224", "a name and a text"),
        ('{"name": "a", "text": "A", "id": 1}', "PC224", "a name and a text"),
        ('{"name": 1, "text": "A"}', "PC224", "a name and a text"),
        ('{"name": "a", "text": " "}', "PC224", "'a' is empty"),
        ('{"name": "a", "text": "\\ud800"}', "PC224", "surrogate"),
        ('{"name": "a b", "text": "A"}', "PC201", "'a b'"),
        ('{"name": "a/b", "text": "A"}', "PC201", "'a/b'"),
        ('{"name": "lamp", "text": "A"}', "PC203", "'lamp' is defined twice (first in line 1)"),
        ('{"name": "cook", "text": "A"}', "PC203", "'cook' is defined twice (also in line 2 of notes.jsonl)"),
    ],
)
def test_wrong_lines_are_refused(line: str, code: str, said: str) -> None:
    """Each fault of a file of members names its line."""
    files = {"notes.jsonl": f'{{"name": "lamp", "text": "L"}}\n{line}\n'}
    (fault,) = faults(SchemaError, checked, FROM_FILE, folder=files)
    assert (fault.code, said in fault.message) == (code, True), fault.message
    if "cook" not in line:
        assert (fault.span.source, fault.span.line) == ("notes.jsonl", 2)


def test_a_file_of_members_can_be_missing_but_not_unreadable() -> None:
    """Members can come later, so a missing or empty file is a warning; a text without a folder has no files."""
    for files in ({}, {"notes.jsonl": "\n"}):
        assert codes(checked(FROM_FILE, folder=files).warnings) == ["PC225"]
    with pytest.raises(SchemaError, match="PC214"):
        parse_schema(FROM_FILE)
    with pytest.raises(SchemaError, match="PC210"):
        parse_schema(FROM_FILE.replace("notes.jsonl", "../notes.jsonl"), folder={})


def test_members_of_a_file_have_their_lines() -> None:
    """A member covers its line, counted in characters, without the mark at the beginning of a file and line ends."""
    data = '\ufeff{"name": "été", "text": "Été."}\r\n\n{"name": "b", "text": "B"}'.encode()

    members = parse_members(data.splitlines(keepends=True), "m.jsonl")

    assert {name: each.text for name, each in members.items()} == {"été": "Été.", "b": "B"}
    assert members["été"].span == Span("m.jsonl", 1, 1, 1, 32)
    assert members["b"].span == Span("m.jsonl", 3, 1, 3, 27)


def test_lines_in_another_encoding_are_refused() -> None:
    """Each line that is not UTF-8 is a fault of its own."""
    first, other = parse_members(['{"name": "a", "text": "é"}\n'.encode("latin-1"), b"{}\n"], "m.jsonl")

    assert (first.code, first.span) == ("PC212", Span("m.jsonl", 1, 1, 1, 27))
    assert (other.code, other.span) == ("PC224", Span("m.jsonl", 2, 1, 2, 3))
    assert "byte 0xe9" in first.message


def test_many_members_are_checked_quickly() -> None:
    """A member of a file costs its check no more than a few microseconds beside its text."""
    lines = "".join(write_members({f"d{number}": "Every text is the same here. " * 4 for number in range(20_000)}))
    start = time.process_time()
    checked(FROM_FILE, folder={"notes.jsonl": lines})
    assert is_within(time.process_time() - start, 0.12)


@given(texts=st.dictionaries(st.from_regex(r"[a-zé_][a-z0-9.é-]{0,9}", fullmatch=True), st.text(min_size=1)))
def test_members_are_written_and_read(texts: dict[str, str]) -> None:
    """Reading what was written gives the same texts; a member without visible text is refused."""
    texts = {name: text for name, text in texts.items() if text.strip() and text.isprintable()}

    members = parse_members((line.encode() for line in write_members(texts)), "m.jsonl")

    assert {name: member.text for name, member in members.items()} == texts


@given(text=st.text(max_size=300) | st.sampled_from(("17", "2026-11-28T09:00", "a:b", "..", "x?y=[1]", "a\u1680b")))
def test_every_text_resembles_a_name(text: str) -> None:
    """`as_name` returns a name of a member, which files, prompts and rules take; a name stays as it is."""
    name = as_name(text)
    assert as_name(name) == name
    assert name == text or not is_name(text)
    rules = f'<rules><exclude modules="notes/{name} notes/cook"/><assert test="not notes/{name} or notes"/></rules>'
    files = {"notes.jsonl": "".join(write_members({name: "A note."}))}
    prompt = Prompt("kb").use(f"notes/{name}").text("Why?")

    schema = checked(FROM_FILE.replace("</schema>", f"{rules}</schema>"), folder=files)
    selection = resolve_prompt(parse_prompt(prompt.to_xml()), schema)
    assert selection.members[f"notes/{name}"].text == "A note."
    assert new_member(name, "A note.").text == "A note."


def test_equal_faults_of_lines_are_one() -> None:
    """A hundred lines without a name are one fault, at the first of them; the fix is another command."""
    lines = [b'{"name": "a", "text": "A"}', *(b'{"id": %d, "body": "B"}' % each for each in range(100)), b"{"]

    first, last = parse_members(lines, "m.jsonl")

    assert [(each.code, each.span.line) for each in (first, last)] == [("PC224", 2), ("PC224", 102)]
    assert "{'body': 'B', 'id': 0}; 99 more lines like this" in first.message
    assert "--name-field" in first.help


@given(schema=collection_schemas())
@settings(max_examples=60)
def test_schemas_with_collections_print(schema: CheckedSchema) -> None:
    """A schema that is printed and read again is the same; so is a formatted one. The grammar accepts it."""
    printed = print_schema(schema.source)
    once = format_document(printed)

    assert shape(checked(printed)) == shape(checked(once)) == shape(schema)
    assert format_document(once) == once
    assert published_grammar().validate(etree.fromstring(printed.encode()))


@given(data=st.data(), schema=collection_schemas())
@settings(max_examples=60)
def test_prompts_with_members_print(data: st.DataObject, schema: CheckedSchema) -> None:
    """A prompt that is printed and read again has the same members in the same order; the grammar accepts it."""
    document = data.draw(strategies.prompt_documents(schema))
    printed = parse_prompt(document).to_xml()

    again, first = (resolve_prompt(parse_prompt(each), schema) for each in (printed, document))
    assert (again.modules, [*again.members]) == (first.modules, [*first.members])
    grammar = etree.RelaxNG(etree.fromstring(prompt_grammar(schema).encode()))
    assert grammar.validate(etree.fromstring(document.encode())), grammar.error_log


def test_grammars_name_the_first_members() -> None:
    """Editors complete up to 100 members of a collection, and accept every other one."""
    lines = "".join(write_members({f"d{number}": "A note." for number in range(20_000)}))
    grammar = etree.fromstring(prompt_grammar(checked(FROM_FILE, folder={"notes.jsonl": lines})).encode())

    names = grammar.xpath("//*[local-name() = 'name']/text()")
    assert names == ["gate", "cook", "été", *(f"d{number}" for number in range(97))]
    accepts = etree.RelaxNG(grammar).validate
    for name in ("cook", "d0", "d1000", "later"):
        assert accepts(etree.fromstring(f'<prompt schema="kb"><notes><{name}/></notes></prompt>'))
    assert not accepts(etree.fromstring('<prompt schema="kb"><later/></prompt>'))


def test_collections_are_built_in_python() -> None:
    """`Schema.collection` builds the same as a document."""
    built = Schema("s").collection("notes", module("gate", "The gate is blue."), minimum=1, maximum=3)
    text = (
        '<schema name="s"><collection name="notes" min="1" max="3"><module name="gate"><text>The gate is blue.</text>'
    )

    assert shape(check_schema(built)) == shape(checked(f"{text}</module></collection></schema>"))
