"""Laws of the plan: every token once, at its place, reused where it can be."""

from __future__ import annotations

import time

import pytest

from promptcache.diagnostics import ContextLengthExceeded, PromptError
from promptcache.layout import (
    Plan,
    check_positions,
    lay_out,
    make_plan,
    run_variants,
)
from tests.fakes import ByteTokenizer
from tests.layout.samples import (
    choose,
    plan_of,
    read,
)
from tests.speed import is_within


def plan(schema: str, prompt: str, *, bos: bool = True) -> Plan:
    return plan_of(f'<schema name="s">{schema}</schema>', f'<prompt schema="s">{prompt}</prompt>', bos=bos)


def test_an_argument_longer_than_its_slot_is_an_error():
    """An argument with more tokens than its slot is refused at its place, with both numbers."""
    with pytest.raises(PromptError) as caught:
        plan('<module name="m">a<parameter name="p" length="4"/>b c</module>', '\n<m p="12345"/>!')

    (fault,) = caught.value.diagnostics
    assert (fault.code, fault.span.line) == ("PC501", 2)
    assert "'p' of module 'm' is 5 tokens, its slot holds 4" in fault.message


def test_every_argument_that_is_too_long_is_named():
    """All arguments that do not fit are reported at once."""
    with pytest.raises(PromptError) as caught:
        plan(
            '<parameter name="p" length="1"/><parameter name="q" length="1"/>',
            '<arg name="p">xx</arg><arg name="q">yy</arg>',
        )

    assert len(caught.value.diagnostics) == 2


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("prompt", ["", "<m/>"])
def test_a_prompt_without_any_text_is_an_error(bos, prompt):
    """A prompt without any token but BOS is refused."""
    with pytest.raises(PromptError) as caught:
        plan('<module name="m"><parameter name="p" length="2"/></module>', prompt, bos=bos)

    assert [fault.code for fault in caught.value.diagnostics] == ["PC506"]


def test_a_request_longer_than_the_model_is_refused_with_its_numbers():
    """Prompt and generated tokens together must fit into the model's positions."""
    made = plan('<module name="m">ab</module>', "<m/>!")  # BOS, ab, the separator, and !

    check_positions(made, 10, 5)
    with pytest.raises(
        ContextLengthExceeded, match="takes 5 positions and 6 new tokens were asked for, the model has 10"
    ):
        check_positions(made, 10, 6)


@pytest.mark.slow
def test_planning_twenty_of_two_thousand_modules_takes_under_a_millisecond():
    """The time of a plan grows with the selection, not with the schema."""
    schema = read(
        '<schema name="s">' + "".join(f'<module name="m{index}">text</module>' for index in range(2_000)) + "</schema>"
    )
    layout = lay_out(schema, ByteTokenizer())
    variants = run_variants(layout)
    selection = choose(
        schema, '<prompt schema="s">' + "".join(f"<m{index}/>" for index in range(0, 2_000, 100)) + "?</prompt>"
    )

    seconds = []
    for _ in range(20):
        start = time.process_time()
        make_plan(selection, layout, variants, ByteTokenizer())
        seconds.append(time.process_time() - start)

    assert is_within(min(seconds), 1e-3)
