"""The picture of 2,000 modules: bearable in size and time, and nothing of it vanishes."""

from __future__ import annotations

import random
import time

import pytest
from lxml import html

from promptcache.layout import Layout
from promptcache.picture import layout_html, layout_svg
from tests.layout.samples import layout_of
from tests.picture.reading import drawn
from tests.speed import is_within

pytestmark = pytest.mark.long


def big_schema(num_modules: int) -> str:
    """A schema of many modules: nested ones, unions, slots, reserves and modules that are not cached."""
    source = random.Random(7)
    names = iter(range(num_modules))

    def words() -> str:
        return " ".join(source.choice(["price", "of", "the", "harbour", "a"]) for _ in range(source.randint(3, 12)))

    def module(depth: int) -> str:
        name = next(names, None)
        if name is None:
            return ""
        options = source.choice(["", "", "", ' cache="false"', ' reserve="90"'])
        slot = (
            f'<parameter name="{words().split()[0]}" length="{source.randint(2, 12)}"/>'
            if source.random() < 0.3
            else ""
        )
        inner = "".join(module(depth + 1) for _ in range(source.randint(0, 3))) if depth < 3 else ""
        both = module(depth + 1) + module(depth + 1) if source.random() < 0.2 else ""
        union = f"<union>{both}</union>" if both else ""
        return f'<module name="m{name}"{options}>{words()} {slot} {words()}{inner}{union}</module>'

    modules = iter(lambda: module(0), "")
    return f'<schema name="big"><system>Be brief.{"".join(modules)}</system></schema>'


SHAPES = {
    "nested": big_schema(2_000),
    "flat": '<schema name="s">'
    + "".join(
        f'<module name="m{i}">Some words <parameter name="p" length="5"/> and <parameter name="q" length="5"/>.</module>'
        for i in range(2_000)
    )
    + "</schema>",
    "union": '<schema name="s"><union>'
    + "".join(f'<module name="m{i}">{"words " * (i % 9 + 1)}</module>' for i in range(2_000))
    + "</union></schema>",
}


@pytest.fixture(scope="module", params=list(SHAPES))
def many(request: pytest.FixtureRequest) -> Layout:
    return layout_of(SHAPES[request.param])


@pytest.mark.parametrize(("draw", "max_bytes"), [(layout_svg, 100_000), (layout_html, 2_700_000)])
def test_two_thousand_modules_make_a_bearable_file_in_time(many, draw, max_bytes):
    """2,000 modules take a second of one core at most; the page holds every part, the SVG an overview."""
    began = time.process_time()

    text = draw(many, token_bytes=131_072)

    assert is_within(time.process_time() - began, 1.5)
    assert len(text.encode()) < max_bytes


def test_two_thousand_modules_are_an_overview(many):
    """The picture is about two screens high. Each fold shows its content in words, and names it: nothing is left out."""
    picture = drawn(many)

    groups = list(picture.groups())
    num_slots = sum(len(list(run.slots)) for run in many.runs)
    assert frozenset().union(*(group.modules for group in groups)) == frozenset(range(2_000))
    assert frozenset().union(*(group.runs for group in groups)) == frozenset(range(len(many.runs)))
    assert frozenset().union(*(group.slots for group in groups)) == frozenset(range(num_slots))
    assert picture.overlapping() == []
    assert picture.height < 3_000
    assert sum(words.text.startswith("▸ m") for words in picture.words()) > 10


def test_every_module_of_two_thousand_can_be_opened(many):
    """The page has a line for each module; few are open at first, and the content of a fold has its own scale."""
    page = html.document_fromstring(layout_html(many))

    lines = page.find_class("row")
    names = {line.find("span").text_content().split(" · ")[0] for line in lines}
    hidden = {id(line) for fold in page.iter("details") if fold.get("open") is None for line in fold.find_class("row")}
    assert {path.rpartition("/")[2] for path in many.modules} <= names
    assert len(lines) - len(hidden) < 150
    assert len(page.find_class("axis")) > 10
