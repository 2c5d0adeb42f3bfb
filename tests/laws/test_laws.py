"""The laws that need no model, over random schemas and over the schemas that ship."""

import ast
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.language import print_schema
from promptcache.testing import ByteTokenizer
from tests.conftest import law_examples, some_of
from tests.laws import laws
from tests.laws.checker_laws import FAULT_LAWS
from tests.laws.laws import LAWS, BrokenLaw, Law, Over, all_modules_fit, check_law, schemas_print
from tests.laws.subject import Subject
from tests.strategies import TOKENIZERS, SchemaFiles, invalid_prompts, schema_files

SHIPPED = sorted((Path(__file__).parents[2] / "schemas").glob("*.xml"))


@pytest.mark.law
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@settings(max_examples=law_examples(0.5))
@given(data=st.data(), written=schema_files(), tokenizer=TOKENIZERS)
def test_laws_hold_for_random_schemas(
    law: Law, data: st.DataObject, written: SchemaFiles, tokenizer: ByteTokenizer
) -> None:
    check_law(law, Subject(written.xml, tokenizer, folder=written.folder), data)


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

    @settings(max_examples=10, database=None)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        for law in LAWS:
            if law.over is not Over.SCHEMA:
                check_law(law, subject, data)
        for fault_law in FAULT_LAWS.values():
            fault_law(subject, data.draw(invalid_prompts(subject.schema, tokenizer=subject.tokenizer)))

    for law in LAWS:
        if law.over is Over.SCHEMA:
            law.check(subject)
    check()


def test_modules_of_one_text_may_share_stored_tokens() -> None:
    """Two modules whose encodings are equal are two modules of a prompt to the laws of repair and levels."""
    schema = """<schema name="s" context="guaranteed" repair="slots">a<union default="a"><module name="a">a</module><module name="a2"/></union>
        <union required="true"><module name="a3">a</module></union><system/></schema>"""
    subject = Subject(schema, ByteTokenizer())

    case = subject.case('<prompt schema="s"><a3/></prompt>')

    first, second = (each.source.encoding for each in case.plan.reused[2:4])
    assert first == second
    laws.repairs_are_right(case)
    laws.level_is_right(case)


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


TESTS = Path(__file__).parents[1]
ORACLES: dict[str, set[str]] = {
    "tests/laws/level_oracle.py": set(),
    "tests/laws/position_oracle.py": set(),
    "tests/laws/rules_oracle.py": {"join_path", "walk"},
    "tests/strategies/split_files.py": {"check_schema", "parse_schema"},  # to read what was written
}
"""Each oracle, and the functions of the library that it uses."""


@pytest.mark.parametrize("file", ORACLES)
def test_oracles_import_types_only(file: str) -> None:
    """An oracle imports from the rooms below only types, whose names begin with a capital, or functions named here."""
    functions = {
        alias.name
        for node in ast.walk(ast.parse((TESTS.parent / file).read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("promptcache.")
        if not (node.module or "").startswith("promptcache.testing")
        for alias in node.names
        if not alias.name[0].isupper()
    }

    assert functions == ORACLES[file]
