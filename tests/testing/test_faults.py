"""Schemas and prompts with one fault each report it first, in its place; a reported prompt is the smallest."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import PromptError
from promptcache.language import CheckedSchema, parse_prompt, resolve_prompt
from promptcache.testing import ByteTokenizer, PromptCase, Subject, check_prompts
from tests import strategies
from tests.conftest import law_examples
from tests.language.documents import checked, faults
from tests.laws.laws import BrokenLaw, level_is_right, tokens_are_in_place
from tests.layout.samples import plan_selection
from tests.planted import language_faults, layout_faults  # noqa: F401 # registered where they are defined
from tests.planted.registry import FAULTS
from tests.strategies import BrokenSchema, InvalidPrompt, SchemaFiles, broken_schemas, schema_faults
from tests.strategies.pieces import CARET
from tests.strategies.prompt_faults import CODE_OF
from tests.strategies.schema_faults import SCHEMA_FAULTS
from tests.testing.samples import EMPTY, RICH, RULED, WIDE, occurring

rich, wide, ruled, empty = checked(RICH), checked(WIDE), checked(RULED), checked(EMPTY)
OF_RULES = {"assert broken", "exclude broken", "no value of the type", "require broken", "wrong number chosen"}
OF_EMPTY = {"empty prompt"}


@pytest.mark.law
@settings(max_examples=law_examples())
@given(broken=broken_schemas())
def test_faults_of_schemas_are_reported_first_and_in_place(broken: BrokenSchema) -> None:
    """Every broken schema gets the code of its fault first, at the fault's file, line and column."""
    first = schema_faults.first_diagnostic(broken.xml, broken.files or None)

    assert first is not None
    place = (first.span.source, first.span.line, first.span.column)
    assert (first.code, *place) == (broken.code, broken.file, broken.line, broken.column)


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
    diagnostic = faults(PromptError, lambda: plan_selection(resolve_prompt(parse_prompt(case.xml), wide)))[0]

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


DESK = """
<schema name="desk" positions="fixed">
  <module name="tone"><union default="calm"><module name="calm">Calm.</module><module name="brisk">Brisk.</module></union></module>
  <module name="policy">Terms <parameter name="days" length="4" default="ten"/> long.
    <module name="region"><union><module name="eu">EU.</module><module name="uk">UK.</module></union></module>
  </module>
  <module name="client" requires="policy">For <parameter name="who" length="5" required="true" placeholder="Ada"/>.</module>
</schema>
"""
PLANTED = {
    "a slot is one position short": (tokens_are_in_place, "<policy/>"),
    "a slot's default is not applied": (tokens_are_in_place, "<policy/>"),
    "the boundary tokens stay at their places": (tokens_are_in_place, '<policy days=""/>'),
    "added text starts one position late": (tokens_are_in_place, "a"),
    "union members are laid out one after another": (tokens_are_in_place, "<policy/>"),
    "every answer is called exact": (level_is_right, '<policy days=""/>'),
}
"""The law that a fault breaks, and the smallest prompt that shows it."""


@pytest.mark.parametrize(("name", "law", "prompt"), [(name, *each) for name, each in PLANTED.items()], ids=PLANTED)
def test_planted_faults_shrink_to_the_smallest_prompt(
    name: str, law: Callable[[PromptCase], None], prompt: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each fault planted into the engine, the note of the error is the smallest prompt that breaks the law."""
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    fault.plant(monkeypatch)

    with pytest.raises(BrokenLaw) as caught:
        check_prompts(Subject(checked(DESK), ByteTokenizer()), law, max_examples=500)

    assert caught.value.__notes__[0].startswith(f'prompt: <prompt schema="desk">{prompt}</prompt>\n')
