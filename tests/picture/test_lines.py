"""Laws of the picture: every part is drawn once, to scale, at its own position, in the style of its kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.language.checked import CheckedItem, CheckedModule, CheckedTurn, CheckedUnion
from promptcache.layout import Origin, Plan, StateKind, lay_out, run_states
from promptcache.picture import layout_svg
from promptcache.picture.chart import ChartLine, Look, Section
from promptcache.picture.lines import make_chart
from tests import strategies
from tests.conftest import law_examples
from tests.layout.samples import plan_of, plan_selection
from tests.picture.reading import Group, Picture, drawn

HALF_A_PIXEL_AND_ROUNDING = 0.52
WIDTHS = st.sampled_from([240, 400, 1000])


def covers(group: Group, picture: Picture, start: int, stop: int) -> bool:
    """Whether a part reaches over the positions `[start, stop)`."""
    outline, slack = group.outline, HALF_A_PIXEL_AND_ROUNDING
    return outline.x <= picture.x(start) + slack and outline.x + outline.width >= picture.x(stop) - slack


def unions(items: Sequence[CheckedItem]) -> Iterator[CheckedUnion]:
    """Every union among and in `items`."""
    for item in items:
        if isinstance(item, CheckedUnion):
            yield item
            yield from unions(item.members)
        elif isinstance(item, CheckedModule | CheckedTurn):
            yield from unions(item.children)


def lines_of(plan: Plan) -> list[ChartLine]:
    """All lines of a plan's picture, folded ones too."""
    chart = make_chart(plan.layout, run_states(plan.layout), plan, None)
    return [each for line in chart.lines for each in line.everything]


@pytest.mark.law
@settings(max_examples=law_examples(0.1))
@given(schema=strategies.schemas(), tokenizer=strategies.TOKENIZERS)
def test_hovering_lights_up_what_a_module_attends_to(schema, tokenizer):
    """The lines that light up while a module is hovered hold the runs that its plain states see, and no others."""
    layout = lay_out(schema, tokenizer)
    states = run_states(layout)

    chart = make_chart(layout, states, None, None)

    lines = [each for line in chart.lines for each in line.everything]
    order = list(schema.modules)
    for line in lines:
        if line.sees is None:
            continue
        path = order[line.modules.start]
        own = [state for state in states if state.kind is StateKind.PLAIN and layout.runs[state.run].module == path]
        seen = {states[index].run for state in own for index in state.sees}
        seen -= {*layout.runs_of[path], *range(layout.has_bos)}
        lit = {run for other in lines if line.sees in other.seen_in for part in other.marks for run in part.runs}
        assert seen <= lit
        for other in lines:
            holds = any(run in seen for part in other.marks for run in part.runs)
            assert (line.sees in other.seen_in) is holds


def test_what_a_prompt_uses_is_not_folded():
    """Of many modules, those that a prompt uses have lines of their own; the others share lines."""
    modules = "".join(f'<module name="m{index}">Text.</module>' for index in range(500))
    plan = plan_of(f'<schema name="s">{modules}</schema>', '<prompt schema="s"><m7/><m300/>Go.</prompt>')

    open_lines = [line for line in make_chart(plan.layout, run_states(plan.layout), plan, None).lines if line.is_open]

    assert {"m7", "m300"} <= {line.labels[0] for line in open_lines}
    assert len(open_lines) < 20


@pytest.mark.law
@settings(max_examples=law_examples(0.15))
@given(schema=strategies.schemas(), width=WIDTHS, tokenizer=strategies.TOKENIZERS)
def test_every_part_is_drawn_to_scale(schema, width, tokenizer):
    """Each text, slot and module has a part that names it and covers its positions, reserve included.

    A line of one module and a mark of one slot reach from its first position to its last. The members of a union take
    different heights and start at the same place.
    """
    layout = lay_out(schema, tokenizer)

    picture = drawn(layout, width)

    groups = list(picture.groups())
    slots = [slot for run in layout.runs for slot in run.slots]
    for run in layout.runs:
        named = [group for group in groups if run.index in group.runs]
        for piece in run.pieces:
            assert any(covers(group, picture, piece.start, piece.stop) for group in named)
    for index, slot in enumerate(slots):
        assert any(covers(group, picture, slot.start, slot.stop) for group in groups if index in group.slots)
    for index, path in enumerate(schema.modules):
        node = layout.modules[path]
        named = [group for group in groups if index in group.modules]
        assert any(covers(group, picture, node.start, node.stop) for group in named)
        for group in named:
            if len(group.modules) == 1:
                assert within(group, picture, node.start, node.stop)
                assert abs(group.outline.x - picture.x(node.start)) <= HALF_A_PIXEL_AND_ROUNDING
    for group in groups:
        if len(group.slots) == 1 and group.outline.style == "slot":
            slot = slots[min(group.slots)]
            assert within(group, picture, slot.start, slot.stop)
    order = list(schema.modules)
    for union in unions(schema.children):
        members = [{order.index(member.path)} for member in union.members]
        boxes = [group.outline for group in groups if set(group.modules) in members]
        places = sorted((box.y, box.y + box.height) for box in boxes)
        assert all(above[1] <= below[0] for above, below in pairwise(places))
        assert len({box.x for box in boxes}) <= 1


def within(group: Group, picture: Picture, start: int, stop: int) -> bool:
    """Whether a part reaches no further than the positions `[start, stop)`; it has two pixels at least."""
    outline, last = group.outline, max(picture.x(stop), picture.x(start) + 2)
    slack = HALF_A_PIXEL_AND_ROUNDING
    return outline.x >= picture.x(start) - slack and outline.x + outline.width <= last + slack


@pytest.mark.law
@settings(max_examples=law_examples(0.1))
@given(data=st.data(), schema=strategies.schemas(), width=WIDTHS, tokenizer=strategies.TOKENIZERS)
def test_a_prompt_is_drawn_as_what_it_is(data, schema, width, tokenizer):
    """Reused, repaired and new places of the picture are those of the plan: none lost, none twice.

    A part is drawn as absent if and only if the prompt uses none of the modules that it shows. No label reaches into
    its neighbour or out of the picture, with a prompt and without.
    """
    plan = plan_selection(data.draw(strategies.prompts(schema)), tokenizer)

    marks = [mark for line in lines_of(plan) for mark in line.marks]
    with_prompt, alone = (Picture(layout_svg(plan.layout, plan=each, width=width)) for each in (plan, None))

    sections = [section for each in marks for section in each.sections]
    sections += [Section(each.start, each.stop, each.look) for each in marks]
    shown = {
        look: sorted(position for each in sections if each.look is look for position in range(each.start, each.stop))
        for look in Look
    }
    behind = max((place + 1 for each in plan.pieces for place in each.places), default=0)
    added = range(behind, behind + sum(len(each.token_ids) for each in plan.added))
    again = [each for each in plan.new if each.origin in (Origin.REPAIRED, Origin.LAST)]
    others = [each for each in plan.new if each not in again]
    assert shown[Look.REUSED] == sorted(place for each in plan.reused for place in each.places)
    assert shown[Look.REPAIRED] == sorted(place for each in again for place in each.places)
    assert shown[Look.NEW] == [*sorted(place for each in others for place in each.places), *added]
    for group in with_prompt.groups():
        if group.modules:
            is_used = any([*schema.modules][index] in plan.selection.modules for index in group.modules)
            assert ("absent" in group.outline.style) is not is_used
    for picture in (with_prompt, alone):
        assert picture.overlapping() == []
        assert max(words.stop for words in picture.words()) <= picture.width
