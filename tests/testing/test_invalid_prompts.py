"""Prompts broken in one named way: each reports its fault first, in its place."""

from __future__ import annotations

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import CODES, Diagnostic, PromptError
from promptcache.language import CheckedSchema, parse_prompt, resolve_prompt
from promptcache.layout import lay_out, make_plan, run_states
from promptcache.testing import ByteTokenizer
from tests import strategies
from tests.conftest import law_examples
from tests.strategies import InvalidPrompt
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
    make_plan(resolve_prompt(parse_prompt(xml), schema), layout, run_states(layout), ByteTokenizer())


def first_diagnostic(case: InvalidPrompt, schema: CheckedSchema) -> Diagnostic:
    """Return the first finding of a prompt on its way to a plan."""
    with pytest.raises(PromptError) as caught:
        to_plan(case.xml, schema)
    return caught.value.diagnostics[0]


@settings(max_examples=law_examples())
@given(data=st.data())
def test_faults_are_reported_first_and_in_place(data: st.DataObject) -> None:
    """Every invalid prompt is refused with the code of its fault, at the line and column where the fault is."""
    schema = data.draw(strategies.schemas())
    case = data.draw(strategies.invalid_prompts(schema))

    diagnostic = first_diagnostic(case, schema)

    assert diagnostic.code == case.code in CODES
    assert (diagnostic.span.line, diagnostic.span.column) == (case.line, case.column)


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


@given(invalid=strategies.invalid_prompts(rich, codes=["PC408", "PC501"]))
@settings(max_examples=20)
def test_faults_can_be_chosen(invalid: InvalidPrompt) -> None:
    """Only the faults asked for are made."""
    assert invalid.code in {"PC408", "PC501"} <= CODES.keys()


def test_faults_that_no_prompt_has_are_refused() -> None:
    """Codes that no prompt gets are refused when the strategy is made."""
    with pytest.raises(ValueError, match="no prompt is drawn that gets PC203, PC999"):
        strategies.invalid_prompts(rich, codes=["PC999", "PC203"])


def test_invalid_prompts_shrink() -> None:
    """A broken prompt shrinks to the smallest valid prompt with that fault in it."""
    search = settings(max_examples=2000, derandomize=True, database=None, phases=[Phase.generate, Phase.shrink])

    twice = strategies.invalid_prompts(rich, codes=[CODE_OF["named twice"]])
    found = find(twice, lambda case: case.mutation == "named twice", settings=search)

    assert found.xml.count("<use") == 1
    assert "user" not in found.xml
