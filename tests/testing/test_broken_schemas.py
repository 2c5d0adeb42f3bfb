"""Schemas with one fault each: each reports its fault first, in its place."""

from __future__ import annotations

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import CODES
from tests import strategies
from tests.conftest import law_examples
from tests.strategies import BrokenSchema, SchemaFiles, broken_schemas, schema_faults
from tests.strategies.pieces import CARET
from tests.strategies.schema_faults import SCHEMA_FAULTS, first_diagnostic
from tests.testing.occurring import occurring

pytestmark = pytest.mark.long


@pytest.mark.law
@settings(max_examples=law_examples())
@given(broken=broken_schemas())
def test_faults_are_reported_first_and_in_place(broken: BrokenSchema) -> None:
    """Every broken schema gets the code of its fault first, as severe as that code, at the fault's file, line and column."""
    first = first_diagnostic(broken.xml, broken.folder)

    assert first is not None
    place = (first.span.source, first.span.line, first.span.column)
    assert (first.code, *place) == (broken.code, broken.file, broken.line, broken.column)
    assert first.severity is CODES[broken.code].severity


def test_carets_in_texts_are_no_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that happens to hold the caret of the table is no place of a fault (Hypothesis draws constants of the code)."""
    xml = f'<schema name="s"><module name="m">{CARET}</module></schema>'
    monkeypatch.setattr(strategies, "schema_files", lambda: st.just(SchemaFiles(xml=xml, files={}, whole=xml)))

    test_faults_are_reported_first_and_in_place()


def test_every_fault_occurs() -> None:
    """No fault of the table is out of reach, also in a small schema, and no two have one name and code."""
    xml = '<schema name="s"><module name="m"/></schema>'
    small = st.just(SchemaFiles(xml=xml, files={}, whole=xml))
    for code in {fault.code for fault in SCHEMA_FAULTS}:
        of_code = [fault.name for fault in SCHEMA_FAULTS if fault.code == code]

        assert len(set(of_code)) == len(of_code)
        assert occurring(
            schema_faults.broken_schemas(small, [code]), lambda broken: [broken.mutation], set(of_code)
        ) == set(of_code)


@given(broken=broken_schemas(codes=["PC203", "PC311"]))
@settings(max_examples=20)
def test_faults_can_be_chosen(broken: BrokenSchema) -> None:
    """Only the faults asked for are made."""
    assert broken.code in {"PC203", "PC311"}


def test_a_code_that_is_never_made_is_refused() -> None:
    """Asking for a fault that no strategy makes raises an error at once."""
    with pytest.raises(ValueError, match="no schema is drawn that gets PC004"):
        broken_schemas(codes=["PC004"])


@pytest.mark.slow
def test_broken_schemas_shrink() -> None:
    """A broken schema shrinks to the smallest schema, with the fault in it and nothing else."""
    search = settings(max_examples=2_000, derandomize=True, database=None, phases=[Phase.generate, Phase.shrink])

    found = find(broken_schemas(), lambda broken: broken.mutation == "slot without length", settings=search)

    assert (found.xml, found.files) == ('<schema name="s"><parameter name="stray"/></schema>', {})
    assert (found.line, found.column) == (1, 19)


@pytest.mark.parametrize("code", ["PC217", "PC219", "PC221"])
@settings(max_examples=20)
@given(data=st.data())
def test_faults_of_includes_are_made(code: str, data: st.DataObject) -> None:
    """Faults of included files are drawn, with the files that they need."""
    broken = data.draw(broken_schemas(codes=[code]))

    assert broken.folder is not None
    assert "<include" in broken.xml + "".join(broken.files.values())


@pytest.mark.slow
def test_faults_stand_in_included_files() -> None:
    """Any fault can be in an included file, at any depth, and is reported there."""
    wanted = {"module defined twice", "bare <", "default too long"}
    inside = occurring(
        broken_schemas(["PC203", "PC001", "PC502"]),
        lambda broken: [broken.mutation] if broken.file.endswith("xml") and "stray" not in broken.file else [],
        wanted,
    )

    assert wanted <= inside
