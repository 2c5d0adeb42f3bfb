"""Laws of the plan: every token once, at its place, reused where it can be."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import ContextLengthExceeded, PromptError
from promptcache.layout import (
    Origin,
    Plan,
    StateKind,
    check_positions,
    lay_out,
    make_plan,
    run_states,
)
from tests import strategies
from tests.conftest import law_examples
from tests.fakes import ByteTokenizer
from tests.layout.samples import (
    choose,
    new_tokens,
    placed_tokens,
    plan_of,
    plan_selection,
    read,
    reused_tokens,
    text_of,
)
from tests.speed import is_within


def plan(schema: str, prompt: str, *, bos: bool = True) -> Plan:
    return plan_of(f'<schema name="s">{schema}</schema>', f'<prompt schema="s">{prompt}</prompt>', bos=bos)


def origins(made: Plan) -> list[tuple[Origin, str]]:
    """Return the origin and the text of everything that is prefilled."""
    return [(part.origin, ByteTokenizer().detokenize(part.token_ids)) for part in made.new]


@pytest.mark.law
@settings(max_examples=law_examples(0.25))
@given(data=st.data(), schema=strategies.schemas(), tokenizer=strategies.TOKENIZERS)
def test_the_tokens_of_a_plan_are_those_that_it_places(data, schema, tokenizer):
    """`tokens` has the reused parts, and every new token at its position."""
    made = plan_selection(data.draw(strategies.prompts(schema)), tokenizer)

    tokens = made.tokens

    assert list(zip(tokens.position_ids, tokens.token_ids, strict=True)) == new_tokens(made.new)
    reused = [pair for part in tokens.parts for pair in zip(part.position_ids, part.token_ids, strict=True)]
    assert reused == reused_tokens(made)


@pytest.mark.law
@settings(max_examples=law_examples(0.25))
@given(data=st.data(), schema=strategies.schemas(), tokenizer=strategies.TOKENIZERS)
def test_the_last_token_is_new(data, schema, tokenizer):
    """The token with the highest position is always prefilled, and generation continues right after it."""
    made = plan_selection(data.draw(strategies.prompts(schema)), tokenizer)

    assert made.stop == max(position for position, _ in placed_tokens(made)) + 1
    assert made.stop - 1 == new_tokens(made.new)[-1][0]


@pytest.mark.law
@settings(max_examples=law_examples(0.25))
@given(data=st.data(), schema=strategies.schemas(), tokenizer=strategies.TOKENIZERS)
def test_no_token_is_new_without_need(data, schema, tokenizer):
    """Cached text is prefilled only as the last token."""
    made = plan_selection(data.draw(strategies.prompts(schema)), tokenizer)
    cached = {"", *(path for path, module in schema.modules.items() if module.cache)}

    for part in made.new:
        if part.origin is Origin.LAST:
            assert len(part.token_ids) == 1
        elif part.origin is Origin.UNCACHED:
            assert part.module not in cached


SLOT = 'a<parameter name="p" length="4" {}/>b c'
MOVED = (Origin.REPAIRED, "b")


@pytest.mark.parametrize(
    ("attributes", "arguments", "new", "num_reused"),
    [
        pytest.param("", 'p="7"', [(Origin.ARGUMENT, "7"), MOVED], 4, id="argument in a gap"),
        pytest.param("", "", [], 5, id="nothing in a gap"),
        pytest.param('default="de"', "", [], 7, id="default is the filler"),
        pytest.param('default="de"', 'p="de"', [], 7, id="argument is the filler"),
        pytest.param('default="de"', 'p="xy"', [(Origin.ARGUMENT, "xy"), MOVED], 4, id="argument in place of the filler"),
        pytest.param('default="de"', 'p=""', [MOVED], 4, id="empty argument in place of the default"),
        pytest.param('placeholder="pl"', "", [MOVED], 4, id="placeholder is not shown"),
        pytest.param('placeholder="pl"', 'p="pl"', [], 7, id="argument is the placeholder"),
        pytest.param('placeholder="pl" default="de"', "", [(Origin.DEFAULT, "de"), MOVED], 4, id="default in place of the placeholder"),
        pytest.param('placeholder="pl" default="pl"', "", [], 7, id="default is the placeholder"),
    ],
)  # fmt: skip
def test_what_a_slot_holds(attributes, arguments, new, num_reused):
    """A slot holds the argument, else the default, else nothing. If that is not the filler, the text behind moves."""
    made = plan(f'<module name="m">{SLOT.format(attributes)}</module>', f"<m {arguments}/>!")

    assert origins(made) == [*new, (Origin.TEXT, "!")]
    assert made.num_reused_tokens == num_reused


def test_arguments_stand_at_the_first_positions_of_their_slot():
    """An argument starts where its slot starts and names its module and parameter."""
    argument = plan(f'<module name="m">{SLOT.format("")}</module>', '<m p="7"/>!').new[0]

    assert (argument.start, argument.module, argument.parameter) == (2, "m", "p")


def test_an_argument_longer_than_its_slot_is_an_error():
    """An argument with more tokens than its slot is refused at its place, with both numbers."""
    with pytest.raises(PromptError) as caught:
        plan(f'<module name="m">{SLOT.format("")}</module>', '\n<m p="12345"/>!')

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


def test_uncached_modules_are_prefilled_with_their_slots():
    """Text and slots of a module with cache="false" are new in every request."""
    made = plan(
        f'<module name="m" cache="false">{SLOT.format("default=" + chr(34) + "de" + chr(34))}</module>', "<m/>!"
    )

    assert origins(made) == [
        (Origin.UNCACHED, "a"), (Origin.DEFAULT, "de"), (Origin.UNCACHED, "b"), (Origin.UNCACHED, " c"), (Origin.TEXT, "!")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "references", "start"),
    [
        pytest.param('<module name="m">ab</module>', "<m/>", 3, id="after the last text"),
        pytest.param(
            '<module name="m">ab</module><module name="n">cd</module>', "<m/>", 3, id="not after what is absent"
        ),
        pytest.param(
            '<module name="m">a<parameter name="p" length="9"/></module>', "<m/>", 2, id="an empty slot does not count"
        ),
        pytest.param('<module name="m" reserve="9">ab</module>', "<m/>", 3, id="reserve does not count"),
        pytest.param('<module name="m">ab</module><text>xy</text>', "", 4, id="anonymous text counts"),
    ],
)
def test_added_text_starts_behind_the_last_token(schema, references, start):
    """Text of the prompt starts directly behind the last token in use."""
    made = plan(schema, f"{references}!")

    assert made.new[-1].start == start


def test_generation_continues_inside_a_trailing_slot():
    """Without added text generation continues right after the last token, be it an argument in the middle of a slot."""
    made = plan('<module name="m">a<parameter name="p" length="9"/></module>', '<m p="xy"/>')

    assert (made.new[-1].origin, made.stop) == (Origin.ARGUMENT, 4)


def test_a_prompt_that_ends_in_cached_text_feeds_its_last_token_again():
    """The last cached token becomes a new one when nothing follows it."""
    made = plan('<module name="m">abc</module>', "<m/>")

    assert origins(made) == [(Origin.LAST, "c")]
    assert (made.new[0].start, made.new[0].module, made.num_reused_tokens) == (3, "m", 3)


def test_a_reused_range_that_loses_its_only_token_is_dropped():
    """No empty range is left when the last token was an encoding's only one."""
    made = plan('<module name="m">c</module>', "<m/>")

    assert [(reuse.run.index, reuse.source.token_ids) for reuse in made.reused] == [(0, ByteTokenizer().bos_ids)]


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("prompt", ["", "<m/>"])
def test_a_prompt_without_any_text_is_an_error(bos, prompt):
    """A prompt without any token but BOS is refused."""
    with pytest.raises(PromptError) as caught:
        plan('<module name="m"><parameter name="p" length="2"/></module>', prompt, bos=bos)

    assert [fault.code for fault in caught.value.diagnostics] == ["PC506"]


def test_scaffold_states_are_used_when_all_members_are_there():
    """A prompt with all members of a scaffold reuses their scaffold states."""
    schema = '<module name="a">a</module><module name="b">b</module><scaffold name="f" modules="a b"/>'

    both, one = plan(schema, "<a/><b/>!"), plan(schema, "<b/>!")

    run = both.layout.runs_of["b"][0]
    encodings = {state.kind: state.encoding for state in run_states(both.layout) if state.run == run}
    assert both.reused[-1].source.encoding == encodings[StateKind.SCAFFOLD]
    assert one.reused[-1].source.encoding == encodings[StateKind.PLAIN]


def test_a_request_longer_than_the_model_is_refused_with_its_numbers():
    """Prompt and generated tokens together must fit into the model's positions."""
    made = plan('<module name="m">abc</module>', "<m/>!")

    check_positions(made, 10, 5)
    with pytest.raises(
        ContextLengthExceeded, match="takes 5 positions and 6 new tokens were asked for, the model has 10"
    ):
        check_positions(made, 10, 6)


def test_the_order_of_references_does_not_matter():
    """Slots decide the positions of modules: references in any order give the same tokens at the same positions."""
    schema = '<module name="a">a</module><module name="b">b</module>'

    assert placed_tokens(plan(schema, "<b/><a/>!")) == placed_tokens(plan(schema, "<a/><b/>!"))


@pytest.mark.slow
def test_planning_twenty_of_two_thousand_modules_takes_under_a_millisecond():
    """The time of a plan grows with the selection, not with the schema."""
    schema = read(
        '<schema name="s">' + "".join(f'<module name="m{index}">text</module>' for index in range(2_000)) + "</schema>"
    )
    layout = lay_out(schema, ByteTokenizer())
    states = run_states(layout)
    selection = choose(
        schema, '<prompt schema="s">' + "".join(f"<m{index}/>" for index in range(0, 2_000, 100)) + "?</prompt>"
    )

    seconds = []
    for _ in range(20):
        start = time.process_time()
        make_plan(selection, layout, states, ByteTokenizer())
        seconds.append(time.process_time() - start)

    assert is_within(min(seconds), 1e-3)


def test_the_model_reads_the_prompt():
    """The plan's tokens in position order are the text that the author sees."""
    made = plan('Plan.<module name="m">Go to <parameter name="to" length="9"/> now</module>', '<m to="Rome"/>Why?')

    assert text_of(made) == "<bos>Plan.\nGo to Rome nowWhy?"
