"""`promptcache diff`."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings

from promptcache.cli import diff
from promptcache.cli.diff import SchemaChanges, compare_prompts, compare_schemas
from promptcache.cli.layout_changes import compare_encodings
from promptcache.diagnostics import PromptError
from promptcache.language import CheckedSchema, Placement, Prompt, resolve_prompt
from promptcache.layout import Encoding, Layout, lay_out, run_states
from promptcache.testing.selection import list_selections
from tests import strategies
from tests.cli.conftest import TRAVEL, Command
from tests.conftest import law_examples
from tests.fakes import ByteTokenizer
from tests.layout.samples import read

pytestmark = pytest.mark.usefixtures("folder")


def changes(old: str, new: str) -> SchemaChanges:
    """Compare two schemas under the byte tokenizer."""
    layouts = [
        lay_out(read(f'<schema name="s" positions="fixed">{inside}</schema>'), ByteTokenizer()) for inside in (old, new)
    ]
    return compare_schemas(layouts[0], layouts[1], ByteTokenizer(), ("old", "new"), "bytes")


def contents(layout: Layout, known: dict[object, int]) -> dict[int, int]:
    """Numbers of tokens of a layout's encodings, by a number for each content: tokens, positions, and those of its context."""
    numbers: dict[Encoding, int] = {}
    for each in (state.encoding for state in run_states(layout)):
        context = tuple((numbers[part.encoding], part.start, part.stop) for part in each.context)
        numbers[each] = known.setdefault((each.token_ids, each.position_ids, context), len(known))
    return {number: each.num_tokens for each, number in numbers.items()}


@pytest.mark.law
@settings(max_examples=law_examples(0.25))
@given(schema=strategies.schemas())
def test_schema_compared_with_itself_is_unchanged(schema: CheckedSchema) -> None:
    """Between a schema and itself every encoding is kept and every prompt stays valid."""
    layout = lay_out(schema, ByteTokenizer())

    same = compare_schemas(layout, layout, ByteTokenizer(), ("a", "a"), "bytes")

    assert same.harmless
    assert (same.slots, same.encodings.made, same.reserve) == ((), (), None)
    assert same.prompts.num_lost == 0


@pytest.mark.law
@settings(max_examples=law_examples(0.5))
@given(old=strategies.schemas(), new=strategies.schemas())
def test_encodings_are_kept_where_contents_are_equal(old: CheckedSchema, new: CheckedSchema) -> None:
    """Encodings that are kept, added and dropped agree with the equality of tokens, positions and contexts."""
    layouts = lay_out(old, ByteTokenizer()), lay_out(new, ByteTokenizer())
    known: dict[object, int] = {}
    before, now = (contents(layout, known) for layout in layouts)

    found = compare_encodings(*layouts, {})

    assert found.num_kept == len(before.keys() & now.keys())
    assert found.num_kept_tokens == sum(before[key] for key in before.keys() & now.keys())
    assert found.num_dropped_tokens == sum(before[key] for key in before.keys() - now.keys())
    assert found.num_made_tokens == sum(now[key] for key in now.keys() - before.keys())


@pytest.mark.law
@settings(max_examples=law_examples(0.5))
@given(old=strategies.schemas(parameters=False), new=strategies.schemas(parameters=False))
@pytest.mark.long
def test_lost_prompts_are_those_that_do_not_resolve(old: CheckedSchema, new: CheckedSchema) -> None:
    """A combination is lost if the new schema refuses a prompt for it, whether it names what defaults add or not."""
    listed = list_selections(old)
    assume(listed is not None)
    assert listed is not None

    found = compare_prompts(old, new)

    assert found.all_checked
    assert found.num_checked == len(listed)
    assert found.num_lost <= sum(any(selects(named, new) is None for named in forms(each, old)) for each in listed)
    assert found.num_lost >= sum(selects(modules, new) is None for modules in listed)
    assert bool(found.examples) is bool(found.num_lost)


def test_prompts_are_lost_that_name_none_of_two_defaults() -> None:
    """A prompt may leave a default to the schema, and a default inside that one too."""
    unions = '<union {}><module name="a"><union {}><module name="b"/></union></module></union>'
    old, new = (
        read(f'<schema name="s">{unions.format(*options)}</schema>')
        for options in (('default="a"', 'default="b"'), ('required="true"', ""))
    )

    found = compare_prompts(old, new)

    assert [each.xml for each in found.examples] == ['<prompt schema="s"/>\n']
    assert frozenset() in forms(frozenset({"a", "a/b"}), old)


def forms(modules: frozenset[str], schema: CheckedSchema) -> set[frozenset[str]]:
    """Return the sets of modules that a prompt can name to select these: all of them, or all but some defaults."""
    found = {modules}
    new = [modules]
    while new:
        named = new.pop()
        fewer = {named - {module} for module in named} - found
        new.extend(each for each in fewer if selects(each, schema) == modules)
        found.update(new)
    return found


def selects(named: frozenset[str], schema: CheckedSchema) -> frozenset[str] | None:
    """Return the selection of a prompt that names these modules, or None if it is refused."""
    prompt = Prompt(schema.name)
    for path in named:
        prompt = prompt.use(path)
    try:
        return frozenset(resolve_prompt(prompt, schema).modules)
    except PromptError:
        return None


@pytest.mark.parametrize(
    ("new", "reasons"),
    [
        ('<module name="a">A text.</module><module name="b">More.</module>', {"b": "its text changed"}),
        ('<module name="a" reserve="20">A text.</module><module name="b">Text.</module>', {"b": "it moved"}),
        (
            '<module name="a">A text.</module><module name="b" requires="a">Text.</module>',
            {"b": "what it sees changed"},
        ),
        ('<module name="a">A text.</module><module name="b">Text.</module><module name="c">C</module>', {"c": "new"}),
    ],
)
def test_made_encodings_have_their_reason(new: str, reasons: dict[str, str]) -> None:
    """An encoding is new because of its text, its positions, its context, or its module."""
    made = changes('<module name="a">A text.</module><module name="b">Text.</module>', new).encodings.made

    assert {each.module: each.reason for each in made} == reasons


@pytest.mark.parametrize(
    ("old", "new", "reserves"),
    [
        ("A text.", "A longer text.", (("a", 14, 7, False),)),
        ("A longer text.", "A text.", (("a", 14, 7, True),)),
        ('<module name="c">In.</module>', '<module name="c">Inside.</module>', (("a/c", 7, 4, False),)),
        ("A text.", "Other t", ()),
    ],
    ids=["grown", "shrunk", "grown inside", "same length"],
)
def test_reserves_that_keep_what_moved(old: str, new: str, reserves: tuple[Any, ...]) -> None:
    """If only a module's length moves others, its reserve is reported, on the innermost module, with its cost."""
    schema = '<module name="a">{}</module><module name="b">B text.</module>'

    found = changes(schema.format(old), schema.format(new)).reserve

    told = () if found is None else found.modules
    assert tuple((each.module, each.reserve, each.num_empty, each.in_new) for each in told) == reserves
    if found is not None:
        assert (found.num_kept, found.num_kept_tokens) == (1, len("\nB text."))


@pytest.mark.law
@settings(max_examples=law_examples(0.25))
@given(old=strategies.schemas(), new=strategies.schemas())
def test_reserves_keep_what_they_promise(old: CheckedSchema, new: CheckedSchema) -> None:
    """With the reported reserves, the schemas share as many more tokens as the report says."""
    tokenizer = ByteTokenizer()
    fixed = partial(lay_out, tokenizer=tokenizer, placement=Placement.FIXED)
    plain = [fixed(schema) for schema in (old, new)]
    found = compare_schemas(plain[0], plain[1], tokenizer, ("old", "new"), "bytes")

    if found.reserve is not None:
        reserves = {each.module: each.reserve for each in found.reserve.modules}
        before = {now: was for was, now in found.modules.renamed}
        padded = fixed(old, reserves={before.get(path, path): reserves[path] for path in reserves})
        kept = compare_encodings(padded, fixed(new, reserves=reserves), {})
        assert kept.num_kept_tokens == found.encodings.num_kept_tokens + found.reserve.num_kept_tokens
        assert found.reserve.num_kept_tokens > 0


def test_reserve_is_printed(command: Command, folder: Path) -> None:
    """The report and the JSON have the reserve, the tokens that it keeps, and its cost."""
    fixed = TRAVEL.replace("<schema ", '<schema positions="fixed" ')
    (folder / "old.xml").write_text(fixed)
    (folder / "new.xml").write_text(fixed.replace('length="6"', 'length="5"'))

    result = command("diff", "old.xml", "new.xml")
    data = json.loads(command("diff", "old.xml", "new.xml", "--json").stdout)

    assert "reserve: in NEW it keeps " in result.stdout
    assert '"8", 1 position empty in NEW' in result.stdout
    assert data["reserve"]["modules"] == [{"module": "plan", "reserve": 8, "num_empty": 1, "in_new": True}]


def test_renamed_module_keeps_its_encodings() -> None:
    """A module under another name is recognised by its text; its encoding is kept, its prompts are not."""
    found = changes('<module name="a">A text.</module>', '<module name="b">A text.</module>')

    assert found.modules.renamed == (("a", "b"),)
    assert (found.modules.added, found.modules.removed, found.encodings.made) == ((), (), ())
    assert found.prompts.num_lost == 1


@pytest.mark.parametrize(
    ("new", "harmless"),
    [
        ('<module name="a">A<parameter name="p" length="4"/></module>', True),
        ('<module name="a">A<parameter name="p" length="6"/></module>', True),
        ('<module name="a">A<parameter name="p" length="3"/></module>', False),
        ('<module name="a">A<parameter name="p" length="4" required="true"/></module>', False),
        ('<module name="a">A</module>', False),
        ('<module name="a">A<parameter name="p" length="4"/><parameter name="q" length="1"/></module>', True),
        ('<module name="a">A<parameter name="p" length="4"/></module><module name="b">B</module>', True),
        (
            '<module name="a">A<parameter name="p" length="4"/></module><module name="b" required="true">B</module>',
            False,
        ),
        ('<module name="a">B<parameter name="p" length="4"/></module>', False),
    ],
)
def test_what_can_break_prompts_or_costs_encodings_is_not_harmless(new: str, harmless: bool) -> None:
    """A change is harmless if every old prompt stays valid with any arguments, and every old encoding is used."""
    assert changes('<module name="a">A<parameter name="p" length="4"/></module>', new).harmless is harmless


@pytest.mark.parametrize(
    ("old", "new", "harmless"),
    [
        ('type="choice" choices="cash|card"', 'type="choice" choices="card"', False),
        ('type="choice" choices="cash|card"', 'type="choice" choices="card|bill|cash"', True),
        ('type="choice" choices="12|7"', 'type="int"', True),
        ('type="choice" choices="12|7"', 'type="int" pattern="[0-9]"', False),
        ("", 'type="line"', False),
        ("", 'type="int"', False),
        ('type="line"', "", True),
        ('type="int"', 'type="number"', True),
        ('type="number"', 'type="int"', False),
        ('type="int"', 'type="choice" choices="1"', False),
        ('pattern="a+"', "", True),
        ('pattern="a+"', 'pattern="a+" message="write a"', True),
        ('pattern="a+"', 'pattern="a"', False),
        ("", 'pattern="a"', False),
    ],
)
@pytest.mark.parametrize("required", ["", 'required="true"'])
def test_parameter_that_may_refuse_old_texts_is_not_harmless(old: str, new: str, harmless: bool, required: str) -> None:
    """A change is harmless only if every text that a parameter accepted is surely accepted."""
    schema = f'<module name="a">A<parameter name="p" length="9" {required} {{}}/></module>'

    found = changes(schema.format(old), schema.format(new))

    assert found.harmless is harmless
    assert [slot.narrowed for slot in found.slots] == ([] if harmless else [True])


def test_slot_that_got_its_space_instead_of_a_position_is_narrower() -> None:
    """The space before a slot has a position of its own: it does not make up for a shorter length."""
    schema = '<module name="a">A{}<parameter name="p" length="{}"/></module>'

    assert not changes(schema.format("", 6), schema.format(" ", 5)).harmless


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('type="choice" choices="cash|card"', 'type="choice" choices="card"', "'cash'"),
        ("", 'type="int"', "'…'"),
        ('type="int"', 'type="choice" choices="2"', "'1'"),
    ],
)
def test_required_argument_that_is_refused_loses_its_prompt(old: str, new: str, message: str) -> None:
    """A combination is lost if a text for a required parameter was accepted and is refused now."""
    schema = '<module name="a">A<parameter name="p" length="9" required="true" {}/></module>'

    found = changes(schema.format(old), schema.format(new)).prompts

    assert found.num_lost == 1
    assert [each.code for each in found.examples] == ["PC420"]
    assert message in found.examples[0].message


@pytest.mark.parametrize(
    ("old", "new", "harmless"),
    [
        (' version="1.0"', ' version="2.0"', False),
        (' version="1.0"', "", False),
        (' version="1.0"', ' version="1"', True),
        ("", ' version="1.0"', True),
    ],
)
def test_version_that_prompts_may_name_is_kept(
    command: Command, folder: Path, old: str, new: str, harmless: bool
) -> None:
    """Another version is reported: a prompt can name the old one."""
    for name, version in (("old.xml", old), ("new.xml", new)):
        (folder / name).write_text(f'<schema name="s"{version}><module name="a">A</module></schema>')

    result = command("diff", "old.xml", "new.xml")

    assert result.exit_code == (0 if harmless else 1)
    assert ("a prompt that names a version may be refused" in result.stdout) is not harmless


def test_format_of_answers_is_told(command: Command, folder: Path) -> None:
    """A change of the format costs nothing stored; a file may change under its name."""
    schema = '<schema name="s"><module name="a">A</module>{}</schema>'
    (folder / "next").mkdir()
    shown = []
    for old, new in [
        ("", '<answer type="int" pattern="[1-5]"/>'),
        ('<answer type="choice" choices="a|b"/>', '<answer type="text"/>'),
        ('<answer src="a.json"/>', '<answer src="a.json"/>'),
        ('<answer type="line"/>', '<answer type="line"/>'),
    ]:
        for place, stated, kind in ((folder, old, "string"), (folder / "next", new, "integer")):
            (place / "a.json").write_text(json.dumps({"type": kind}))
            (place / "s.xml").write_text(schema.format(stated))
        result = command("diff", "s.xml", "next/s.xml")
        assert result.exit_code == 0
        shown += [line for line in result.stdout.splitlines() if line.startswith("answer")]
    assert shown == [
        'answer: any text is now type="int" pattern="[1-5]"',
        'answer: type="choice" choices="a|b" is now any text',
        'answer: src="a.json" has another content',
    ]
    assert json.loads(command("diff", "s.xml", "next/s.xml", "--json").stdout)["answer"] is None


def test_default_that_goes_is_missed() -> None:
    """A prompt that uses a default member is lost if the new schema has no default."""
    union = '<union {}="{}"><module name="a">A</module><module name="b">B</module></union>'

    found = changes(union.format("default", "a"), union.format("required", "true"))

    assert [each.code for each in found.prompts.examples] == ["PC407"]


def test_cap_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report says if there are more combinations than were checked."""
    monkeypatch.setattr(diff, "MAX_CHECKED", 3)
    schema = read('<schema name="s"><module name="a">A</module><module name="b">B</module></schema>')

    found = compare_prompts(schema, replace(schema))

    assert (found.num_checked, found.all_checked) == (3, False)


def test_exit_code_tells_whether_something_is_lost(command: Command, folder: Path) -> None:
    """The same schema exits with 0, one that costs something with 1, a broken one with its findings."""
    (folder / "new.xml").write_text(TRAVEL.replace("The beach.", "The sea."))

    assert command("diff", "travel.xml", "travel.xml").exit_code == 0
    assert command("diff", "travel.xml", "new.xml").exit_code == 1
    assert "PC208" in command("diff", "travel.xml", "broken.xml").stderr


def test_json_has_the_changes(command: Command, folder: Path) -> None:
    """With --json modules, slots, encodings and prompts come as data."""
    text = TRAVEL.replace('length="6"', 'length="8"').replace("paris", "rome").replace("beach", "bay")
    (folder / "new.xml").write_text(text)

    data: dict[str, Any] = json.loads(command("diff", "travel.xml", "new.xml", "--json").stdout)

    assert data["modules"] == {"added": [], "removed": [], "renamed": [["paris", "rome"]]}
    assert [slot["parameter"] for slot in data["slots"]] == ["days", "hotel", "hotel"]
    assert data["encodings"]["num_made_tokens"] == sum(each["num_tokens"] for each in data["encodings"]["made"]) > 0
    assert data["prompts"]["num_lost"] == 2
    assert data["harmless"] is False


def test_other_name_is_told(command: Command) -> None:
    """A schema of another name is reported first: prompts name their schema."""
    result = command("diff", "travel.xml", "support.xml")

    assert result.stdout.startswith("schema 'travel' is now 'support': every prompt has to say so\n")
    assert "  + faq\n  - plan\n" in result.stdout
