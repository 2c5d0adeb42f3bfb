"""Schemas and prompts with one fault each: each reports its fault first, in its place."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import CODES, Diagnostic, PromptError
from promptcache.language import CheckedSchema, parse_prompt, resolve_prompt
from promptcache.layout import lay_out, make_plan, run_variants
from promptcache.testing import ByteTokenizer
from tests import strategies
from tests.conftest import law_examples
from tests.strategies import BrokenSchema, InvalidPrompt, SchemaFiles, broken_schemas, schema_faults
from tests.strategies.pieces import CARET
from tests.strategies.prompt_faults import CODE_OF
from tests.strategies.schema_faults import SCHEMA_FAULTS
from tests.testing.occurring import occurring
from tests.testing.samples import EMPTY, RICH, RULED, WIDE, checked

pytestmark = pytest.mark.long

rich, wide, ruled, empty = checked(RICH), checked(WIDE), checked(RULED), checked(EMPTY)
OF_RULES = {"assert broken", "exclude broken", "no value of the type", "require broken", "wrong number chosen"}

OF_EMPTY = {"empty prompt"}
NOT_DRAWN = {
    **dict.fromkeys(("PC004", "PC009"), "needs megabytes; tests/language/test_xml.py"),
    **dict.fromkeys(("PC002", "PC005", "PC006", "PC008"), "of the XML itself, in one place; tests/language/rejects"),
    **dict.fromkeys(("PC010", "PC212", "PC213"), "needs files on a disk; tests/language/rejects"),
    "PC011": "for documents built in Python; tests/language/test_build.py",
    **dict.fromkeys(("PC012", "PC314"), "needs a large document; tests/language/test_sizes.py"),
    **dict.fromkeys(("PC503", "PC504"), "needs a model with few positions; tests/layout, tests/engine"),
    "PC313": "a warning, and drawn schemas may have it already; tests/language/test_messages.py",
    **dict.fromkeys(
        ("PC112", "PC222", "PC315"), "a warning, and drawn schemas may have it already; tests/language/rejects"
    ),
    **dict.fromkeys(
        ("PC111", "PC224", "PC225", "PC226", "PC423", "PC515"),
        "needs collections; tests/language and tests/engine, test_collections.py",
    ),
    **dict.fromkeys(("PC113", "PC227", "PC316"), "of <answer>; tests/language/rejects and test_answers.py"),
    "PC422": "needs files beside the prompt; tests/cli/test_check.py",
    "PC505": "a warning, and drawn schemas may have it already; tests/layout/test_lay_out.py",
    **dict.fromkeys(("PC511", "PC516"), "a warning; tests/layout/test_lay_out.py"),
    **dict.fromkeys(
        ("PC508", "PC509", "PC510", "PC512", "PC513", "PC514"), "needs a tokenizer that has the fault; tests/layout"
    ),
    **dict.fromkeys(("PC517", "PC518"), "a warning; tests/layout/test_turns.py"),
}
"""Codes that no strategy can make, with the reason and the tests that do. Those of templates (PC6xx) come before XML."""


def to_plan(xml: str, schema: CheckedSchema) -> None:
    """Take a prompt as far as its plan."""
    layout = lay_out(schema, ByteTokenizer())
    make_plan(resolve_prompt(parse_prompt(xml), schema), layout, run_variants(layout), ByteTokenizer())


def first_diagnostic(case: InvalidPrompt, schema: CheckedSchema) -> Diagnostic:
    """Return the first finding of a prompt on its way to a plan."""
    with pytest.raises(PromptError) as caught:
        to_plan(case.xml, schema)
    return caught.value.diagnostics[0]


@pytest.mark.law
@settings(max_examples=law_examples())
@given(broken=broken_schemas())
def test_faults_of_schemas_are_reported_first_and_in_place(broken: BrokenSchema) -> None:
    """Every broken schema gets the code of its fault first, as severe as that code, at the fault's file, line and column."""
    first = schema_faults.first_diagnostic(broken.xml, broken.folder)

    assert first is not None
    place = (first.span.source, first.span.line, first.span.column)
    assert (first.code, *place) == (broken.code, broken.file, broken.line, broken.column)
    assert first.severity is CODES[broken.code].severity


def test_carets_in_texts_are_no_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that happens to hold the caret of the table is no place of a fault (Hypothesis draws constants of the code)."""
    xml = f'<schema name="s"><module name="m">{CARET}</module></schema>'
    monkeypatch.setattr(strategies, "schema_files", lambda: st.just(SchemaFiles(xml=xml, files={}, whole=xml)))

    test_faults_of_schemas_are_reported_first_and_in_place()


def test_every_fault_of_schemas_occurs() -> None:
    """No fault of the table is out of reach, also in a small schema, and no two have one name and code."""
    xml = '<schema name="s"><module name="m"/></schema>'
    small = st.just(SchemaFiles(xml=xml, files={}, whole=xml))
    for code in {fault.code for fault in SCHEMA_FAULTS}:
        of_code = [fault.name for fault in SCHEMA_FAULTS if fault.code == code]
        drawn = schema_faults.broken_schemas(small, [code])

        assert len(set(of_code)) == len(of_code)
        assert occurring(drawn, lambda broken: [broken.mutation], set(of_code)) == set(of_code)


@pytest.mark.slow
def test_faults_stand_in_included_files() -> None:
    """Any fault can be in an included file, at any depth, and is reported there."""
    wanted = {"module defined twice", "bare <", "default too long"}
    drawn = broken_schemas(["PC203", "PC001", "PC502"])

    def in_files(broken: BrokenSchema) -> list[str]:
        return [broken.mutation] if broken.file.endswith("xml") and "stray" not in broken.file else []

    assert wanted <= occurring(drawn, in_files, wanted)


@settings(max_examples=law_examples(0.2))
@given(case=strategies.invalid_prompts(wide))
def test_faults_are_made_where_nothing_is_listed(case: InvalidPrompt) -> None:
    """Schemas with too many selections to list have invalid prompts all the same."""
    diagnostic = first_diagnostic(case, wide)

    assert (diagnostic.code, diagnostic.span.line, diagnostic.span.column) == (case.code, case.line, case.column)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "kinds"), [(rich, CODE_OF.keys() - OF_RULES - OF_EMPTY), (ruled, OF_RULES), (empty, OF_EMPTY)]
)
def test_every_mutation_occurs(schema: CheckedSchema, kinds: set[str]) -> None:
    """A schema with every kind of rule gets every kind of fault, and each kind has one code."""
    wanted = {f"{CODE_OF[kind]} {kind}" for kind in kinds}

    found = occurring(strategies.invalid_prompts(schema), lambda case: [f"{case.code} {case.mutation}"], wanted)

    assert wanted <= found <= {f"{code} {kind}" for kind, code in CODE_OF.items()}


def test_every_code_is_drawn_or_has_a_reason() -> None:
    """For each code of a schema or prompt, a strategy draws it, or this file says why none can."""
    drawn = {*CODE_OF.values(), *(fault.code for fault in SCHEMA_FAULTS)}

    assert drawn.isdisjoint(NOT_DRAWN)
    assert {code for code in CODES if code < "PC600"} == drawn | NOT_DRAWN.keys()


def test_codes_that_are_never_made_are_refused() -> None:
    """Asking for a fault that no strategy makes raises an error when the strategy is made."""
    with pytest.raises(ValueError, match="no prompt is drawn that gets PC203, PC999"):
        strategies.invalid_prompts(rich, codes=["PC999", "PC203"])
    with pytest.raises(ValueError, match="no schema is drawn that gets PC004"):
        broken_schemas(codes=["PC004"])
