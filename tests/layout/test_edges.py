"""Rare schemas: modules that no prompt can use, no cached modules, tokens declared twice."""

from __future__ import annotations

from promptcache.layout import Level, find_state, run_states
from tests.layout.samples import layout_of, plan_of


def test_a_module_that_no_prompt_can_use_attends_to_nothing_beside_it() -> None:
    """A member of a union that needs another member is in no valid prompt; its context ends before it."""
    layout = layout_of(
        '<schema name="s">Root.<union><module name="a">A long one.</module><module name="b" requires="a">B.</module>'
        "</union></schema>"
    )
    states = run_states(layout)

    state = find_state(states, layout.runs_of["b"][0], None)
    assert state is not None
    assert [layout.runs[states[index].run].module for index in state.sees] == [
        "",
        "",
    ]  # BOS, and the text of the root


def test_a_prompt_without_anything_cached_is_exact() -> None:
    """A prompt without reused tokens is exact, and the text behind an empty slot moves to the start of the slot."""
    schema = '<schema name="s"><module name="a" cache="false">A<parameter name="p" length="3"/>z</module></schema>'

    plan = plan_of(schema, '<prompt schema="s"><a/></prompt>', bos=False)

    assert (plan.level, plan.reused) == (Level.EXACT, ())
    assert [(part.start, part.token_ids) for part in plan.new] == [(0, (ord("A"),)), (1, (ord("z"),))]
