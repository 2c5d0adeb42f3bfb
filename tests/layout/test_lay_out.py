"""Laws of the layout: the positions of runs and slots."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from promptcache.diagnostics import SchemaError, Severity
from promptcache.language import Placement, check_schema, parse_schema
from promptcache.layout import check_length, lay_out, run_variants
from tests.fakes import ByteTokenizer
from tests.layout.samples import layout_of, read


def test_text_longer_than_its_reserve_is_a_warning():
    """Text may exceed its module's reserve; the warning has both numbers."""
    layout = layout_of('<schema name="s"><module name="a" reserve="3">12345</module></schema>')

    (warning,) = layout.warnings
    assert warning.code == "PC505"
    assert "5 positions" in warning.message
    assert "reserves 3" in warning.message


@pytest.mark.parametrize("kind", ["default", "placeholder"])
def test_a_filler_longer_than_its_slot_is_an_error(kind):
    """A default or placeholder with more tokens than the slot is refused, with both numbers and the place."""
    with pytest.raises(SchemaError) as caught:
        layout_of(f'<schema name="s">\n<parameter name="p" length="3" {kind}="12345"/></schema>')

    (fault,) = caught.value.diagnostics
    assert (fault.code, fault.span.line) == ("PC502", 2)
    assert f"the {kind} of parameter 'p' is 5 tokens, its slot holds 3" in fault.message


def test_a_choice_longer_than_its_slot_is_a_warning():
    """A choice that no prompt can give is reported at the choices, with both numbers and the length it needs."""
    layout = layout_of(
        '<schema name="s">\nIs <parameter name="p" length="3" type="choice" choices="abc|abcdef"/></schema>'
    )

    (warning,) = layout.warnings
    assert (warning.code, warning.severity) == ("PC516", Severity.WARNING)
    assert (warning.span.line, warning.span.column) == (2, 58)
    assert (
        "'abcdef' of parameter 'p' is 7 tokens with the space before it, its slot holds 4: length=" in warning.message
    )
    assert warning.help == 'write length="6" or shorten the choice'


def test_a_placeholder_of_the_paper_is_cut_to_its_slot():
    """A placeholder written as `scaffold` that is too long is cut, and a warning at the value says so."""
    layout = layout_of('<schema name="s">\n<parameter name="p" length="3" scaffold="12345" default="6"/></schema>')

    (slot,) = layout.runs[-1].slots
    (warning,) = layout.warnings
    assert (slot.token_ids, slot.default_ids) == (ByteTokenizer().tokenize("123"), ByteTokenizer().tokenize("6"))
    assert (warning.code, warning.severity) == ("PC511", Severity.WARNING)
    assert (warning.span.line, warning.span.column) == (2, 42)
    assert "is 5 tokens, its slot holds 3" in warning.message
    assert layout_of('<schema name="s"><parameter name="p" length="5" scaffold="12345"/></schema>').warnings == ()


def test_the_default_of_the_paper_has_to_fit():
    """Only placeholders are cut: a default that is too long is an error beside one."""
    with pytest.raises(SchemaError, match="the default of parameter 'p' is 2 tokens"):
        layout_of('<schema name="s"><parameter name="p" length="1" scaffold="ab" default="ab"/></schema>')


def test_faults_of_a_file_are_told_once():
    """A fault in a file that is included twice is reported once."""
    file = '<schema name="f"><module name="m"><parameter name="p" length="1" default="ab"/></module></schema>'
    twice = '<schema name="s"><module name="a"><include href="f.xml"/></module>'
    twice += '<module name="b"><include href="f.xml"/></module></schema>'
    with pytest.raises(SchemaError) as caught:
        lay_out(check_schema(parse_schema(twice, folder={"f.xml": file})), ByteTokenizer())
    assert [(each.code, each.span.source) for each in caught.value.diagnostics] == [("PC502", "f.xml")]


def test_a_schema_longer_than_the_model_is_refused_with_both_numbers():
    """A schema that needs more positions than the model has is an error."""
    closed = layout_of(
        '<schema name="s" context="guaranteed"><module name="a" reserve="9">123</module><module name="b">45</module></schema>'
    )
    fixed = replace(closed, placement=Placement.FIXED)

    for layout, needed in ((closed, 4), (fixed, 13)):
        check_length(layout, run_variants(layout), needed)
        with pytest.raises(SchemaError, match=f"needs {needed} positions, the model has {needed - 1}"):
            check_length(layout, run_variants(layout), needed - 1)


@pytest.mark.slow
def test_ten_thousand_modules_take_ten_times_as_long_as_a_thousand():
    """The time of a layout grows with the schema, not with its square."""
    seconds = []
    for count in (1_000, 10_000):
        schema = read(
            '<schema name="s">' + "".join(f'<module name="m{i}">text {i}</module>' for i in range(count)) + "</schema>"
        )
        start = time.process_time()
        lay_out(schema, ByteTokenizer())
        seconds.append(time.process_time() - start)

    assert seconds[1] < 30 * seconds[0]
