"""Laws of turns: headers, footers and what follows the schema (docs/layout.md, "The prompt's own text")."""

from __future__ import annotations

import pytest

from promptcache.layout import lay_out, make_plan, run_variants
from tests.fakes import ByteTokenizer
from tests.layout.samples import choose, plan_of, read

CLOSED = "<system>Plan.</system>"
OPEN = "<system>Plan.</system><user>Go.</user>"


@pytest.mark.parametrize(
    ("schema", "added", "is_told"),
    [
        (CLOSED, "", True),
        (CLOSED, "Why?", False),
        (CLOSED, "<user>Why?</user>", False),
        (CLOSED, "<user>Why?</user><assistant>So</assistant>", False),
        (OPEN, "", False),
        ("<user>Go.</user>", "", False),
        ("Text without turns.", "", False),
    ],
)
def test_a_prompt_that_asks_nothing_has_a_warning(schema: str, added: str, is_told: bool) -> None:
    """Text of the prompt or a last turn of the user is a question; without turns, text goes on."""
    plan = plan_of(f'<schema name="s">{schema}</schema>', f'<prompt schema="s">{added}</prompt>')

    assert [each.code for each in plan.warnings] == (["PC517"] if is_told else [])


LOOSE = '<module name="m">Sun.</module><union><module name="a">Sea.</module><module name="b">Sky.</module></union>'
NOTES = '<collection name="notes"><module name="n">Salt.</module></collection>'


@pytest.mark.parametrize(
    ("schema", "added", "of_schema", "of_prompt"),
    [
        (f"<user>{LOOSE}{NOTES}Go.</user>", "<m/><a/><notes><n/></notes>Why?", "", ""),
        (f"<user>Go.</user>{LOOSE}", "<b/>Why?", "the text of modules 'm', 'a', 'b'", "the text of module 'b'"),
        (f"<user>Go.</user>{LOOSE}", "Why?", "the text of modules 'm', 'a', 'b'", ""),
        (f"A text.<user>Go.</user>{LOOSE}", "<m/>", "text outside of modules and the text", "text outside of modules"),
        (f"<system>Go.</system>{NOTES}", "<notes><n/></notes>Why?", "the text of module 'notes'", "the text of module"),
        ('<module name="m"> <user>Go.</user> </module>', "<m/>", "", ""),
        (LOOSE, "<m/>Why?", "", ""),
        (LOOSE, "<m/><user>Why?</user>", "", "the text of module 'm'"),
    ],
)
def test_text_outside_of_turns_has_a_warning(schema: str, added: str, of_schema: str, of_prompt: str) -> None:
    """A schema with turns names its modules outside of them; a conversation names those that it has."""
    checked = read(f'<schema name="s">{schema}</schema>')
    layout = lay_out(checked, ByteTokenizer())
    selection = choose(checked, f'<prompt schema="s">{added}</prompt>')
    plan = make_plan(selection, layout, run_variants(layout), ByteTokenizer())

    for warnings, named in ((checked.warnings, of_schema), (plan.warnings, of_prompt)):
        found = [each for each in warnings if each.code == "PC518"]
        assert [each.message.startswith(named) for each in found] == ([True] if named else [])
        assert all(each.span.source is checked.source.span.source for each in found)
