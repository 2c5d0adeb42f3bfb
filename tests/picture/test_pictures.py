"""Pictures of trees: to scale, with the user's words, and with no content from other places."""

import math
import re
import time
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree, html

import promptcache.picture
from promptcache.language import Prompt, resolve_prompt
from promptcache.layout import Layout, lay_out, make_plan, run_variants
from promptcache.picture import PartKind, Use, html_page, svg_picture, view
from tests import strategies
from tests.conftest import law_examples
from tests.fakes import ByteTokenizer
from tests.layout.samples import layout_of, plan_of, plan_selection
from tests.picture.test_view import PROMPT, SCHEMA
from tests.speed import is_within

MARKUP = "</title></style>]]>&lt;<script>alert('x')</script>\"<!--"
SVG = "{http://www.w3.org/2000/svg}"


def svg_of(shown: Any) -> etree._Element:
    return etree.fromstring(svg_picture(view(shown)))


def page_of(shown: Any) -> html.HtmlElement:
    return html.document_fromstring(html_page(view(shown)))


@pytest.mark.law
@settings(max_examples=law_examples(0.1))
@given(data=st.data(), schema=strategies.schemas(), tokenizer=strategies.TOKENIZERS)
def test_every_token_is_drawn_to_scale(data: Any, schema: Any, tokenizer: Any) -> None:
    """All stretches of the tree are in SVG and page, in order and style, at their places; so is where generation starts."""
    plan = plan_selection(data.draw(strategies.prompts(schema)), tokenizer)
    for shown in (plan, lay_out(schema, tokenizer)):
        root = view(shown)
        expected = [
            ("frame" if part.kind is PartKind.FRAME and use is Use.CACHED else use, start, stop)
            for line in root.walk()
            if not line.kind.is_leaf
            for part in (line, *line.leaves)
            for start, stop, use in part.stretches
        ]
        for drawn in (svg_of(shown), page_of(shown)):
            bars = [each for each in drawn.iter() if each.get("class") == "lane"]
            rects = [rect for bar in bars for rect in bar if rect.get("class") in {*Use, "frame"}]
            assert [rect.get("class") for rect in rects] == [style for style, _, _ in expected]
            for rect, (_, start, stop) in zip(rects, expected, strict=True):
                x, width = (float(rect.get(name).removesuffix("%")) for name in ("x", "width"))
                assert math.isclose(x, 100 * start / (root.stop + 1), abs_tol=0.01)
                assert math.isclose(width, max(0.25, 100 * (stop - start) / (root.stop + 1)), abs_tol=0.01)
            marks = [
                float(rect.get("x").removesuffix("%")) for bar in bars for rect in bar if rect.get("class") == "next"
            ]
            expected_marks = [100 * plan.stop / (plan.stop + 1)] if shown is plan else []
            assert marks == pytest.approx(expected_marks, abs=0.01)


def test_pictures_need_nothing_from_outside() -> None:
    """There is no script, no handler, no link and no style attribute, so pages with a strict policy can show them."""
    plan = plan_of(SCHEMA, PROMPT)
    for drawn in (svg_of(plan), page_of(plan)):
        names = {etree.QName(each).localname for each in drawn.iter()}
        attributes = {name for each in drawn.iter() for name in each.attrib}
        assert not names & {"script", "link", "img", "image", "iframe", "use", "foreignObject"}
        assert not [name for name in attributes if name.startswith("on") or "href" in name or name == "style"]
    assert svg_picture(view(plan)).count("http") == 1  # the namespace
    assert not re.findall(r"@import|url\(|var\(|light-dark", svg_picture(view(plan)))


@pytest.mark.parametrize("text", [MARKUP, "\x00\x0b\x7f\ufffe", "\u202eright to left", "漢字" * 100, "e\u0301" * 200])
def test_text_is_never_markup(text: str) -> None:
    """Any text of schema and prompt is shown as words, or as signs for characters that cannot be shown."""
    layout = layout_of(
        f'<schema name="s"><module name="m">{escape(MARKUP)}<parameter name="p" length="900"/></module></schema>'
    )
    prompt = Prompt("s").use("m", p=text).text(text)
    plan = make_plan(resolve_prompt(prompt, layout.schema), layout, run_variants(layout), ByteTokenizer())

    page = page_of(plan)
    drawn = svg_of(plan)

    assert not list(page.iter("script"))
    assert MARKUP[:20] in page.text_content()
    assert {etree.QName(each).localname for each in drawn.iter()} <= {"svg", "style", "rect", "text"}


def test_a_row_says_what_is_in_it() -> None:
    """A page has a row for each module, which opens to show its facts and texts; absent ones are faded."""
    page = page_of(plan_of(SCHEMA, PROMPT))

    rows = {row.find("summary/span").get("title"): row for row in page.iter("details")}
    assert {"trip", "system", "plan", "city", "rome", "miami", "notes", "car", "user"} <= rows.keys()
    assert "slot days  [19, 25) 6 positions · argument 'three' · 6 new" in rows["plan"].text_content()
    assert {name for name, row in rows.items() if row.find("summary/span").get("class") == "name faded"} == {
        "miami",
        "notes",
        "car",
    }
    assert "not in this prompt" in rows["car"].text_content()
    assert "generation starts" in page.text_content()


@pytest.mark.parametrize("schema", ['<schema name="s">Text.</schema>', '<schema name="s"><module name="m"/></schema>'])
def test_little_is_drawn(schema: str) -> None:
    """A schema of one text, and one without any text, have pictures."""
    layout = layout_of(schema, bos=False)

    assert len([*page_of(layout).iter("details")]) == 1
    assert svg_of(layout).tag == f"{SVG}svg"


def test_the_legend_explains_what_occurs() -> None:
    """The legend has every style of the picture, and no other."""
    for shown in (layout_of(SCHEMA), plan_of(SCHEMA, PROMPT)):
        page = page_of(shown)
        styles = {rect.get("class") for bar in page.find_class("lane") for rect in bar.iter("rect")}
        explained = {rect.get("class") for key in page.find_class("key") for rect in key.iter("rect")}
        assert explained == styles - {"schema", "prompt", "axis"}


def nested(number: int, depth: int = 4) -> str:
    """A module with modules and unions in it, slots, reserves, and modules that are not cached."""
    options = ("", ' cache="false"', ' reserve="90"')[number % 3]
    slot = f'<parameter name="p" length="{number % 9 + 2}"/>' if number % 4 == 0 else ""
    inner = "".join(nested(8 * number + index, depth - 1) for index in range(1, 7)) if depth else ""
    union = f'<union><module name="u{number}">One.</module><module name="v{number}">Two.</module></union>'
    return f'<module name="m{number}"{options}>The price of {slot} the harbour{inner}{union if depth else ""}</module>'


FLAT = "".join(
    f'<module name="m{i}">Some words <parameter name="p" length="5"/> and <parameter name="q" length="5"/>.</module>'
    for i in range(2_000)
)
SHAPES = {
    "nested": f'<schema name="s"><system>Be brief.{nested(1)}</system></schema>',
    "flat": f'<schema name="s">{FLAT}</schema>',
}


@pytest.fixture(scope="module", params=list(SHAPES))
def many(request: pytest.FixtureRequest) -> Layout:
    return layout_of(SHAPES[request.param])


@pytest.mark.parametrize(("draw", "max_bytes"), [(svg_picture, 20_000), (html_page, 3_000_000)])
def test_two_thousand_modules_make_a_bearable_file_in_time(many: Layout, draw: Any, max_bytes: int) -> None:
    """The SVG is an overview. The page has every module; few rows are open at first, and folds have their own scale."""
    began = time.process_time()

    text = draw(view(many, 131_072))

    assert is_within(time.process_time() - began, 2)
    assert len(text.encode()) < max_bytes
    if draw is html_page:
        page = html.document_fromstring(text)
        names = {row.find("summary/span").get("title") for row in page.iter("details")}
        assert {*many.modules} <= names
        assert len([row for row in page.iter("details") if row.getparent().get("class") == "promptcache"]) < 60
        assert len([*page.find_class("inside")]) > 10


def test_what_a_prompt_uses_is_not_folded() -> None:
    """Of many modules, those that a prompt uses have rows of their own; the others share rows."""
    modules = "".join(f'<module name="m{index}">Text.</module>' for index in range(500))
    plan = plan_of(f'<schema name="s">{modules}</schema>', '<prompt schema="s"><m7/><m300/>Go.</prompt>')

    rows = [row for row in page_of(plan).iter("details") if row.getparent().get("class") == "promptcache"]

    assert {"m7", "m300"} <= {row.find("summary/span").text for row in rows}
    assert len(rows) < 20


COLOURS = {
    name: (light, dark)
    for name, light, dark in re.findall(
        r"\.promptcache \.?(\w+) \{ (?:fill|color): light-dark\((#\w+), (#\w+)\)",
        Path(promptcache.picture.__file__).with_name("picture.css").read_text(encoding="utf-8"),
    )
}
BEHIND_LABELS = ["paper", "cached", "frame", "uncached", "slot", "filler", "reused", "repaired", "new"]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_labels_can_be_read(scheme: int) -> None:
    """Every label has the contrast that WCAG 2.2 asks for at level AA, in light and in dark surroundings."""
    pairs = [*(("text", each) for each in BEHIND_LABELS), ("faded", "paper")]
    for ink, paper in pairs:
        lighter, darker = sorted((luminance(COLOURS[name][scheme]) for name in (ink, paper)), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (ink, paper)


def luminance(colour: str) -> float:
    """The relative luminance of a colour, by WCAG."""
    channels = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
