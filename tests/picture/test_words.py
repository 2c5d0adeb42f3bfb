"""Labels of the picture fit into their boxes and are readable."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lxml import etree

from promptcache.diagnostics import listed
from promptcache.picture.style import FADED, FILLS, INK, LIT, PAPER
from promptcache.picture.text import columns, excerpt, fit, shown

LABELS = st.lists(st.text(), min_size=1, max_size=3)
BEHIND = {**FILLS, "paper": PAPER, "lit": LIT}
BEHIND_LABELS = ["paper", "lit", "cached", "together", "frame", "uncached", "slot", "filler", "reused", "new"]
BEHIND_FADED_LABELS = ["paper", "lit"]
READABLE = 4.5  # WCAG 2.2, level AA


@given(labels=LABELS, room=st.integers(0, 30), keep_end=st.booleans())
def test_what_fits_is_no_wider_than_its_room(labels, room, keep_end):
    """A label takes at most the columns that there are."""
    assert columns(fit(labels, room, keep_end=keep_end)) <= room


@given(text=st.text())
def test_shown_text_can_stand_in_xml(text):
    """XML can hold the shown form of any text, in one line."""
    element = etree.Element("text")

    element.text = shown(text)

    assert "\n" not in element.text


def test_the_first_label_that_fits_is_taken():
    """Longer labels come first; a shortened name keeps its end, a shortened text its beginning.

    An excerpt says that there is more, a list how much.
    """
    assert fit(["plan · required", "plan"], 15) == "plan · required"
    assert fit(["plan · required", "plan"], 14) == "plan"
    assert fit(["tool-description-17"], 8) == "tool…-17"
    assert fit(["The price of the lamp"], 8, keep_end=False) == "The pri…"
    assert fit(["plan"], 3) == ""
    assert (excerpt("a\nb", 10), excerpt("abcdef", 3)) == ("“a↵b”", "“abc…”")
    assert (listed(["a", "b", "c"], 2), listed(["a", "b", "c", "d"], 2)) == ("a, b, c", "a, b and 2 more")


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("ink", "style"), [*((INK, each) for each in BEHIND_LABELS), *((FADED, each) for each in BEHIND_FADED_LABELS)]
)
def test_labels_can_be_read(ink, style, scheme):
    """Every label has the contrast that WCAG asks for, in light and in dark surroundings."""
    lighter, darker = sorted((luminance(ink[scheme]), luminance(BEHIND[style][scheme])), reverse=True)

    assert (lighter + 0.05) / (darker + 0.05) >= READABLE


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("one", "other"), [*itertools.combinations(["module", "union", "turn", "scaffold", "prompt"], 2)]
)
def test_lines_of_different_kinds_look_different(one, other, scheme):
    """Bars of modules, unions, turns and prompts have colours of which no two are alike (CIE76, at least 12)."""
    assert math.dist(lab(FILLS[one][scheme]), lab(FILLS[other][scheme])) >= 12


def lab(colour: str) -> tuple[float, float, float]:
    """The CIELAB coordinates of a colour."""
    r, g, b = linear(colour)
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    )
    x, y, z = (each ** (1 / 3) if each > 0.008856 else 7.787 * each + 16 / 116 for each in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def luminance(colour: str) -> float:
    """The relative luminance of a colour, by WCAG."""
    r, g, b = linear(colour)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def linear(colour: str) -> list[float]:
    """Red, green and blue in light, from 0 to 1."""
    channels = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
