"""The laws of the picture: everything is in it, to scale, in its own place, and as what it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.language.checked import CheckedItem, CheckedModule, CheckedTurn, CheckedUnion
from promptcache.layout import lay_out, layout_svg, run_states
from promptcache.layout.picture.measure import measure
from promptcache.layout.picture.parts import Look, Mark, Part
from tests import strategies
from tests.conftest import law_examples
from tests.fakes import ByteTokenizer
from tests.layout.picture_reading import Group, Picture, drawn
from tests.layout.samples import new_tokens, plan_selection, reused_tokens

HALF_A_PIXEL_AND_ROUNDING = 0.52
WIDTHS = st.sampled_from([240, 400, 1000])


def covers(group: Group, line: int, start: float, stop: float) -> bool:
    """Whether a part reaches over a stretch of a line."""
    outline, slack = group.outline, HALF_A_PIXEL_AND_ROUNDING
    return outline.line == line and outline.x <= start + slack and outline.x + outline.width >= stop - slack


def assert_drawn(picture: Picture, groups: list[Group], start: int, stop: int) -> None:
    """Some of `groups` covers the positions `[start, stop)` on every line that shows them."""
    for line, first, last in picture.lines(start, stop):
        assert any(covers(group, line, first, last) for group in groups), (line, first, last, groups)


def unions(items: Sequence[CheckedItem]) -> Iterator[CheckedUnion]:
    """Every union among and in `items`."""
    for item in items:
        if isinstance(item, CheckedUnion):
            yield item
            yield from unions(item.members)
        elif isinstance(item, CheckedModule | CheckedTurn):
            yield from unions(item.children)


def marks(part: Part) -> Iterator[Mark]:
    """Every mark in a part."""
    if isinstance(part, Mark):
        yield part
    else:
        for each in part.parts:
            yield from marks(each)


@pytest.mark.law
@settings(max_examples=law_examples(0.1))
@given(schema=strategies.schemas(), width=WIDTHS)
def test_every_run_and_slot_is_drawn_to_scale(schema, width):
    """Each text and slot has a part that names it and covers its positions, on every line that shows them."""
    layout = lay_out(schema, ByteTokenizer())

    picture = drawn(layout, width)

    groups, num_slots = list(picture.groups()), 0
    for run in layout.runs:
        for piece in run.pieces:
            assert_drawn(picture, [group for group in groups if run.index in group.runs], piece.start, piece.stop)
        for slot in run.slots:
            assert_drawn(picture, [group for group in groups if num_slots in group.slots], slot.start, slot.stop)
            num_slots += 1


@pytest.mark.law
@settings(max_examples=law_examples(0.1))
@given(schema=strategies.schemas(), width=WIDTHS)
def test_every_module_is_drawn_to_scale(schema, width):
    """Each module has a part that names it and covers its positions, reserve included."""
    layout = lay_out(schema, ByteTokenizer())

    picture = drawn(layout, width)

    groups = list(picture.groups())
    for index, path in enumerate(schema.modules):
        extent = layout.extents[path]
        named = [group for group in groups if index in group.modules]
        assert named
        if extent.start < extent.stop:
            assert_drawn(picture, named, extent.start, extent.stop)


@pytest.mark.law
@settings(max_examples=law_examples(0.1))
@given(schema=strategies.schemas(), width=WIDTHS)
def test_a_slot_is_drawn_no_wider_than_it_is(schema, width):
    """What names one slot only, and is no gathering of small parts, ends where the slot ends."""
    layout = lay_out(schema, ByteTokenizer())

    picture = drawn(layout, width)

    slots = [slot for run in layout.runs for slot in run.slots]
    for group in picture.groups():
        if len(group.slots) == 1 and group.outline.style == "slot":
            slot = slots[min(group.slots)]
            _, start, stop = next(
                each for each in picture.lines(slot.start, slot.stop) if each[0] == group.outline.line
            )
            assert group.outline.x >= start - HALF_A_PIXEL_AND_ROUNDING
            assert group.outline.x + group.outline.width <= max(stop, start + 2) + HALF_A_PIXEL_AND_ROUNDING


@pytest.mark.law
@settings(max_examples=law_examples(0.1))
@given(schema=strategies.schemas(), width=WIDTHS)
def test_union_members_stand_below_each_other(schema, width):
    """On every line, the members of a union take different heights and start at the same place."""
    layout = lay_out(schema, ByteTokenizer())

    picture = drawn(layout, width)

    order = list(schema.modules)
    for union in unions(schema.children):
        members = [{order.index(member.path)} for member in union.members]
        boxes = [[group.outline for group in picture.groups() if group.modules == member] for member in members]
        first = {
            line: min(box.x for each in boxes for box in each if box.line == line)
            for each in boxes
            for line in [box.line for box in each]
        }
        places = sorted((box.y, box.y + box.height) for each in boxes for box in each)
        assert all(above[1] <= below[0] for above, below in pairwise(places))
        assert all(abs(box.x - first[box.line]) <= 2 * HALF_A_PIXEL_AND_ROUNDING for each in boxes for box in each)


@pytest.mark.law
@settings(max_examples=law_examples(0.1))
@given(data=st.data(), schema=strategies.schemas(), width=WIDTHS)
def test_labels_never_overlap(data, schema, width):
    """No label reaches into its neighbour or out of the picture, with a prompt and without."""
    plan = plan_selection(data.draw(strategies.prompts(schema)))

    for each in (None, plan):
        picture = Picture(layout_svg(plan.layout, run_states(plan.layout), plan=each, width=width))
        assert picture.overlapping() == []
        assert max(words.stop for words in picture.words()) <= picture.width


@pytest.mark.law
@settings(max_examples=law_examples(0.1))
@given(data=st.data(), schema=strategies.schemas())
def test_every_token_of_a_request_is_drawn_as_what_it_is(data, schema):
    """Reused and new positions of the picture are those of the plan: none lost, none twice."""
    plan = plan_selection(data.draw(strategies.prompts(schema)))

    root = measure(plan.layout, run_states(plan.layout), plan, None)

    sections = [section for mark in marks(root) for section in mark.sections]
    shown = {
        look: sorted(position for each in sections if each.look is look for position in range(each.start, each.stop))
        for look in Look
    }
    assert shown[Look.REUSED] == sorted(position for position, _ in reused_tokens(plan))
    assert shown[Look.NEW] == sorted(position for position, _ in new_tokens(plan.prefill))


@pytest.mark.law
@settings(max_examples=law_examples(0.1))
@given(data=st.data(), schema=strategies.schemas())
def test_what_a_prompt_leaves_out_is_faded(data, schema):
    """A part is drawn as absent if and only if the prompt uses none of the modules that it shows."""
    plan = plan_selection(data.draw(strategies.prompts(schema)))

    picture = Picture(layout_svg(plan.layout, run_states(plan.layout), plan=plan))

    order = list(schema.modules)
    for group in picture.groups():
        if group.modules:
            is_used = any(order[index] in plan.selection.modules for index in group.modules)
            assert ("absent" in group.outline.style) is not is_used
