"""The picture has the user's words, and no content from other places."""

from __future__ import annotations

import re
from xml.sax.saxutils import escape

import pytest
from lxml import etree, html

from promptcache.diagnostics import size_text
from promptcache.language import Prompt, resolve_prompt
from promptcache.layout import make_plan, run_states
from promptcache.picture import layout_html, layout_svg
from promptcache.picture.chart import LineKind, Look
from promptcache.picture.lines import make_chart
from tests.fakes import ByteTokenizer
from tests.layout.samples import layout_of, plan_of
from tests.picture.reading import SVG, Picture, drawn

SCHEMA = """\
<schema name="trip">
  <system>Be brief.</system>
  <module name="plan">Trip of <parameter name="days" length="8" default="two"/> days</module>
  <union name="city">
    <module name="rome" reserve="30">Rome is old.</module>
    <module name="miami" cache="false">Miami</module>
  </union>
  <module name="car" requires="plan">By car.</module>
  <scaffold name="both" modules="plan rome"/>
  <user>Go.</user>
</schema>
"""
PROMPT = '<prompt schema="trip"><plan days="three"/><rome/><user>Where to?</user></prompt>'
MARKUP = "</title></style>]]>&lt;<script>alert('x')</script>\"<!--"
ELEMENTS = {"svg", "style", "defs", "pattern", "path", "circle", "rect", "g", "title", "text"}


def test_the_picture_needs_nothing_from_outside():
    """There is no script, no handler, no link and no style from elsewhere."""
    plan = plan_of(SCHEMA, PROMPT)

    text = layout_svg(plan.layout, plan=plan)

    root = etree.fromstring(text)
    names = {etree.QName(element).localname for element in root.iter()}
    attributes = {name for element in root.iter() for name in element.attrib}
    assert names <= ELEMENTS
    assert not [name for name in attributes if name.startswith("on") or "href" in name or name == "style"]
    assert "@import" not in text
    assert text.count("http") == 1  # the namespace
    assert set(re.findall(r"url\((.)", text)) == {"#"}


@pytest.mark.parametrize("text", [MARKUP, "\x00\x0b\x7f\ufffe", "\u202eright to left", "漢字" * 100, "e\u0301" * 200])
def test_text_is_never_markup(text):
    """Any text of schema and prompt is shown as words, or as symbols for characters that cannot be shown."""
    layout = layout_of(
        f'<schema name="s"><module name="m">{escape(MARKUP)}<parameter name="p" length="900"/></module></schema>'
    )
    states = run_states(layout)
    prompt = Prompt("s").use("m", p=text).text(text)
    plan = make_plan(resolve_prompt(prompt, layout.schema), layout, states, ByteTokenizer())

    picture = Picture(layout_svg(layout, plan=plan))
    page = html.document_fromstring(layout_html(layout, plan=plan))

    assert {etree.QName(each).localname for each in picture.root.iter()} <= ELEMENTS
    assert any(MARKUP in group.notes for group in picture.groups())
    assert page.findall(".//script") == []
    assert picture.overlapping() == []


def test_hovering_tells_what_stands_there():
    """A text shows its words, positions, tokens, bytes and context; a slot its filler."""
    layout = layout_of(SCHEMA)

    picture = Picture(layout_svg(layout, token_bytes=512))

    told = [group.notes for group in picture.groups()]
    assert (
        "text of module car\n“↵By car.”\npositions 63–70 (8) · 8 tokens · KV 4 KiB\nsees text outside modules, plan\n"
        "behind other modules it sees the one before, too" in told
    )
    assert not any("module plan" in notes and "the one before" in notes for notes in told)
    assert any("slot days of module plan" in notes and "default “two”" in notes for notes in told)
    assert any("in scaffold both it sees plan, too" in notes for notes in told)
    assert any("not cached: new in every request" in notes for notes in told)
    assert any(notes.startswith("reserve of module rome") for notes in told)
    assert any(notes.startswith("union city is as long as its longest member") for notes in told)


def test_hovering_tells_what_a_prompt_does():
    """With a plan, a slot shows its argument, a text whether it is reused, and the end where generation starts."""
    plan = plan_of(SCHEMA, PROMPT)

    picture = Picture(layout_svg(plan.layout, plan=plan))

    told = [group.notes for group in picture.groups()]
    assert any("argument “three”\nnew: 6 tokens" in notes for notes in told)  # with the space before the slot
    assert any(notes.startswith("text of module rome") and "\nreused: 13 tokens" in notes for notes in told)
    assert any(notes.startswith("text added by the prompt\n“Where to?”") for notes in told)
    assert any("absent from this prompt" in notes for notes in told)
    assert f"generation starts at position {plan.stop}" in told


def test_the_page_has_a_row_for_every_slot():
    """The page shows the picture, and each slot with its positions and what the prompt puts there."""
    plan = plan_of(SCHEMA, PROMPT)

    page = html.document_fromstring(layout_html(plan.layout, plan=plan))

    cells = [[cell.text for cell in row] for row in page.findall(".//tbody/tr")]
    assert page.findtext("head/title") == "trip: layout"
    assert cells == [["plan", "days", "text", "19–27", "9", "“two”", None, None, "“three”"]]
    names = [line.find("span").text for line in page.find_class("row")]
    assert [name for name in names if name in ("plan", "rome", "car")] == ["plan", "rome", "car"]


def test_the_page_says_what_a_prompt_leaves_out():
    """A slot is absent with its module, holds its default, or nothing; of very many slots the page counts the rest."""
    slots = "".join(f'<parameter name="p{number}" length="1"/>' for number in range(1_000))
    schema = f"""<schema name="s"><module name="a"><parameter name="p" length="1"/></module>
    <module name="b"><parameter name="p" length="2" default="x"/><parameter name="q" length="1"/></module>
    <module name="many">{slots}</module></schema>"""
    plan = plan_of(schema, '<prompt schema="s"><b/>Go.</prompt>')

    page = html.document_fromstring(layout_html(plan.layout, plan=plan))

    rows = page.findall(".//tbody/tr")
    assert [row[-1].text for row in rows[:3]] == ["absent", "its default", "nothing"]
    assert (len(rows), page.findall(".//p")[-1].text) == (1_000, "and 3 more")


def test_scaffolds_have_lines():
    """A scaffold has a line with its runs, and those that it encodes once more; a prompt fades scaffolds not in use."""
    layout, plan = layout_of(SCHEMA), plan_of(SCHEMA, PROMPT)
    other = plan_of(SCHEMA, '<prompt schema="trip"><plan/><user>Hi</user></prompt>')

    alone = make_chart(layout, run_states(layout), None, 512).lines[-1]
    used, unused = (make_chart(each.layout, run_states(each.layout), each, None).lines[-2] for each in (plan, other))

    assert (alone.kind, alone.labels[0]) == (LineKind.SCAFFOLD, "scaffold both")
    states = [each for each in run_states(layout) if "both" in each.scaffolds]
    assert alone.num_tokens == sum(each.encoding.num_tokens for each in states) > 0
    assert alone.notes[1:] == (
        "plan, rome: each sees the others before it",
        f"{alone.num_tokens} tokens once more · KV {size_text(512 * alone.num_tokens)}",
    )
    assert {mark.labels[0]: mark.look for mark in alone.marks} == {"plan": Look.CACHED, "rome": Look.TOGETHER}
    assert (used.present, used.marks) == (True, alone.marks)
    assert not any(mark.present for mark in unused.marks)
    assert (unused.present, unused.notes[0]) == (False, "scaffold both, not used by this prompt")
    page = html.document_fromstring(layout_html(layout))
    assert "scaffold both" in [line.find("span").text for line in page.find_class("row")]


@pytest.mark.parametrize("width", [240, 340, 390, 1000])
def test_names_of_nested_modules_are_there_at_any_width(width):
    """On a phone each name is above its bar, so that it has the width of the picture; facts are in several lines."""
    names = ["mexico", "guadalajara", "restaurants-by-night", "las-nueve-esquinas"]
    start = "".join(f'<module name="{name}">Text.' for name in names)
    picture = drawn(layout_of(f'<schema name="s">{start}{"</module>" * len(names)}</schema>'), width)

    words = [each.text for each in picture.words()]
    assert set(names) <= set(words)
    assert picture.overlapping() == []
    assert all(each.stop <= width for each in picture.words())
    assert "encodings" in " ".join(words)


def test_an_empty_schema_has_a_picture():
    """A schema without any text is drawn as an empty axis."""
    picture = drawn(layout_of('<schema name="s"><module name="m"/></schema>', bos=False))

    assert [group.modules for group in picture.groups()] == [frozenset({0})]


STYLES = {"turn", "module", "union", "cached", "frame", "uncached", "slot", "filler", "gap", "together", "scaffold"}


def test_the_legend_explains_what_occurs():
    """The legend has every style of the picture."""
    groups = drawn(layout_of(SCHEMA)).root.iter(f"{SVG}g")

    assert {group.find(f"{SVG}rect").get("class") for group in groups if group.get("class") == "legend"} >= STYLES


def test_the_scale_is_as_long_as_the_longest_prompt():
    """The scale reaches to the end of the drawing, the prompt's own text included."""
    plan = plan_of(SCHEMA, PROMPT)

    chart = make_chart(plan.layout, run_states(plan.layout), plan, None)

    behind = 1 + max(place for piece in plan.pieces for place in piece.places)
    assert chart.stop == max(plan.layout.stop, behind + 1 + sum(len(piece.token_ids) for piece in plan.added))
