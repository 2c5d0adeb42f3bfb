"""The laws that need no model, over random schemas and over the schemas that ship."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from promptcache.language import print_schema
from promptcache.testing import ByteTokenizer
from promptcache.testing.cases import subject_prompts
from tests.conftest import law_examples, some_of
from tests.laws import laws
from tests.laws.checker_laws import FAULT_LAWS
from tests.laws.laws import LAWS, BrokenLaw, Law, Over, all_modules_fit, check_law, check_laws, schemas_print
from tests.laws.subject import Subject
from tests.strategies import TOKENIZERS, InvalidPrompt, SchemaFiles, invalid_prompts, schema_files
from tests.strategies.selected import named_modules

SHIPPED = sorted((Path(__file__).parents[2] / "schemas").glob("*.xml"))


@pytest.mark.law
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@settings(max_examples=law_examples(0.5))
@given(data=st.data(), written=schema_files(), tokenizer=TOKENIZERS)
def test_laws_hold_for_random_schemas(
    law: Law, data: st.DataObject, written: SchemaFiles, tokenizer: ByteTokenizer
) -> None:
    """Every law that needs no model holds for any schema and prompt."""
    subject = Subject(written.xml, tokenizer, folder=written.folder)

    match law.over:
        case Over.SCHEMA:
            law.check(subject)
        case Over.PROMPT:
            law.check(data.draw(subject_prompts(subject)))
        case Over.NAMED:
            law.check(subject, data.draw(named_modules(subject.schema)))


@pytest.mark.law
@pytest.mark.parametrize("law", FAULT_LAWS)
@settings(max_examples=law_examples(0.5))
@given(data=st.data(), written=schema_files(), tokenizer=TOKENIZERS)
def test_fault_laws_hold_for_random_schemas(
    law: str, data: st.DataObject, written: SchemaFiles, tokenizer: ByteTokenizer
) -> None:
    """The checker and the grammars give the expected findings for any prompt with one fault."""
    subject = Subject(written.checked(), tokenizer)

    FAULT_LAWS[law](subject, data.draw(invalid_prompts(subject.schema)))


@pytest.mark.law
@pytest.mark.parametrize("file", some_of(SHIPPED, 3), ids=lambda file: file.stem)
def test_laws_hold_for_shipped_schemas(file: Path) -> None:
    """Every schema that ships keeps every law, those of faulty prompts included, with the demo model's tokenizer."""
    subject = Subject(file)

    for law in LAWS:
        check_law(law, subject, max_examples=10)
    for name in FAULT_LAWS:
        check_fault_law(name, subject, 10)


def check_fault_law(law: str, subject: Subject, max_examples: int) -> None:
    """Check a law of prompts with one fault over prompts of one schema."""

    @settings(max_examples=max_examples, database=None)
    @given(invalid=invalid_prompts(subject.schema, tokenizer=subject.tokenizer))
    def check(invalid: InvalidPrompt) -> None:
        FAULT_LAWS[law](subject, invalid)

    check()


def test_all_laws_run_on_one_schema() -> None:
    """`check_laws` runs all laws on a schema given as text."""
    check_laws('<schema name="s"><module name="a">x<parameter name="p" length="3"/></module></schema>', max_examples=10)


@pytest.mark.parametrize("over", [Over.PROMPT, Over.NAMED])
def test_laws_are_drawn_under_any_profile(over: Over) -> None:
    """A profile of Hypothesis without the phase that draws changes neither the laws nor their smallest example."""

    def fail(*_: object) -> None:
        raise BrokenLaw("found")

    default = settings.get_current_profile_name()
    settings.register_profile("explicit", phases=[Phase.explicit])
    settings.load_profile("explicit")
    try:
        with pytest.raises(BrokenLaw, match="found"):
            check_law(Law(name="none", over=over, check=fail), Subject(TWO, ByteTokenizer()), max_examples=5)
    finally:
        settings.load_profile(default)


def test_modules_of_one_text_may_share_stored_tokens() -> None:
    """Two modules whose encodings are equal are two modules of a prompt to the laws of repair and levels."""
    schema = """<schema name="s" context="guaranteed">a<union default="a"><module name="a">a</module><module name="a2"/></union>
        <union required="true"><module name="a3">a</module></union><system/></schema>"""
    subject = Subject(schema, ByteTokenizer())

    case = subject.case('<prompt schema="s"><a3/></prompt>')

    first, second = (each.source.encoding for each in case.plan.reused[2:4])
    assert first == second
    laws.repairs_are_right(case)
    laws.level_is_right(case)


@pytest.mark.parametrize("law", FAULT_LAWS)
def test_schemas_may_speak_of_strays(law: str) -> None:
    """The word that makes faults may also name modules, slots and choices of a schema, and occur in its texts."""
    slot = '<parameter name="stray" length="9" type="choice" choices="stray|strays" default="stray"/>'
    xml = f'<schema name="stray"><module name="stray">{slot} stray<module name="astray"/></module></schema>'

    check_fault_law(law, Subject(xml, ByteTokenizer()), 300)


@pytest.mark.parametrize(
    "example",
    [
        '<example valid="true"><prompt schema="s"><a /></prompt></example>',
        '<example valid="true"><prompt schema="s"><a></a></prompt></example>',
        "<example valid='true'><prompt schema='s'><a p='x'/></prompt></example>",
        '<example contains="AA"><prompt schema="s"><a p="&#65;"/>a > b</prompt></example>',
        '<example name="e"><prompt\n  schema="s"\n><a/></prompt></example>',
        '<example valid="true"><prompt version="1.5" schema="s"><a/></prompt></example>',
        '<example valid="false"><prompt schema="s"><b /></prompt></example>',
        '<example valid="false"><prompt schema="s"><a />x<user>y</user></prompt></example>',
    ],
)
def test_examples_may_be_written_in_any_form(example: str) -> None:
    """A printed example may be written in another form: the law compares its prompt, its name and its expectations."""
    module = '<module name="a">A<parameter name="p" length="3"/></module>'
    xml = f'<schema name="s" version="1.5">{module}{example}</schema>'

    schemas_print(Subject(xml, ByteTokenizer()))


@pytest.mark.parametrize(
    ("part", "other"), [('p="x"', 'p="y"'), ("<a ", "<b "), ('name="e"', 'name="f"'), ('valid="true"', "")]
)
def test_examples_that_are_printed_wrongly_break_a_law(part: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example with another argument, module, name or expectation is not the same example."""
    module = '<module name="{}">A<parameter name="p" length="3"/></module>'
    prompt = '<example name="e" valid="true"><prompt schema="s"><a p="x"/></prompt></example>'
    xml = f'<schema name="s">{module.format("a")}{module.format("b")}{prompt}</schema>'
    monkeypatch.setattr(laws, "print_schema", lambda schema: print_schema(schema).replace(part, other))

    with pytest.raises(BrokenLaw, match="the examples are printed as"):
        schemas_print(Subject(xml, ByteTokenizer()))


def test_a_schema_beyond_the_model_breaks_a_law() -> None:
    """A schema that needs more positions than there are is named with both numbers."""
    subject = Subject('<schema name="s"><module name="a">one two three</module></schema>', ByteTokenizer())

    with pytest.raises(BrokenLaw, match="takes 14 positions, there are 14"):
        all_modules_fit(subject, 14)


def test_laws_are_stated() -> None:
    """Every law has a name of its own and a sentence that states it."""
    assert len({law.name for law in LAWS}) == len(LAWS)
    assert all(law.statement.endswith(".") for law in LAWS)


TWO = '<schema name="s">Root.<union><module name="a">Text of a.</module><module name="b">Else of b.</module></union></schema>'
