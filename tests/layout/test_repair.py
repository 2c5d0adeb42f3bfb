"""Laws of repair: which stored tokens a plan computes again, and where."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import InvalidValue
from promptcache.language import Repair, Selection
from promptcache.layout import Level, Origin, Piece, Plan, lay_out, make_plan, run_variants
from tests import strategies
from tests.conftest import law_examples
from tests.fakes import ByteTokenizer
from tests.laws.level_oracle import true_level
from tests.laws.position_oracle import planned_tokens
from tests.layout.samples import plan_of

BYTES = ByteTokenizer()


def planned(selection: Selection, repair: str, tokenizer: ByteTokenizer = BYTES) -> Plan:
    layout = lay_out(selection.schema, tokenizer)
    return make_plan(selection, layout, run_variants(layout), tokenizer, Repair.parse(repair))


@pytest.mark.law
@settings(max_examples=law_examples(0.5))
@given(data=st.data(), schema=strategies.schemas(), tokenizer=strategies.TOKENIZERS)
def test_no_first_tokens_are_the_default(data, schema, tokenizer):
    """The plan of "first-0" is that of "slots", and more first tokens never reuse more."""
    selection = data.draw(strategies.prompts(schema))

    none, one, many = (planned(selection, repair, tokenizer) for repair in ("first-0", "first-1", "first-9"))

    slots = planned(selection, "slots", tokenizer)
    assert (none.reused, none.new, none.level) == (slots.reused, slots.new, slots.level)
    assert none.num_reused_tokens >= one.num_reused_tokens >= many.num_reused_tokens


@pytest.mark.law
@settings(max_examples=law_examples(0.5))
@given(data=st.data(), schema=strategies.schemas(), tokenizer=strategies.TOKENIZERS)
def test_recomputed_tokens_keep_their_places(data, schema, tokenizer):
    """`recompute` changes which tokens are new, and nothing else about them."""
    plan = planned(data.draw(strategies.prompts(schema)), "slots", tokenizer)
    stored = {position for piece in plan.reused for position in piece.position_ids}
    again = frozenset(data.draw(st.sets(st.sampled_from([*range(plan.stop)]))))

    made = plan.recompute(again)

    assert planned_tokens(made) == planned_tokens(plan)
    assert {position for piece in made.reused for position in piece.position_ids} == stored - again
    assert [each for piece in made.pieces for each in owners(piece)] == [
        each for piece in plan.pieces for each in owners(piece)
    ]
    assert made.level is true_level(made)


def owners(piece: Piece) -> list[tuple[str, str | None, int]]:
    """The module, the parameter and the index in its run of each token."""
    first = piece.index or 0
    return [(piece.module, piece.parameter, index) for index in range(first, first + len(piece.token_ids))]


@pytest.mark.law
@settings(max_examples=law_examples(0.5))
@given(data=st.data(), schema=strategies.exact_schemas(), tokenizer=strategies.TOKENIZERS)
def test_slots_that_hold_their_fillers_are_reused(data, schema, tokenizer):
    """If all is required and every slot holds its filler, the prompt is exact, and every run is reused whole, except a
    last token that is fed again."""
    plan = planned(data.draw(strategies.exact_prompts(schema)), "slots", tokenizer)

    assert plan.level is Level.EXACT

    assert not {each.origin for each in plan.new} & {Origin.ARGUMENT, Origin.DEFAULT, Origin.REPAIRED}
    is_fed_again = plan.new[-1].origin is Origin.LAST
    whole = plan.reused[:-1] if is_fed_again else plan.reused
    assert all(piece.source == piece.source.encoding.whole for piece in whole)


@pytest.mark.parametrize("given_text", ["two", None])
@pytest.mark.parametrize("repair", ["none", "slots"])
def test_an_argument_like_the_filler_changes_nothing(given_text, repair):
    """With an argument that is the default, or with none, the module is reused whole: one part, an exact answer."""
    argument = "" if given_text is None else f' days="{given_text}"'
    prompt = f'<prompt schema="s"><a{argument}/>!</prompt>'
    schema = '<schema name="s"><module name="a">Trip of <parameter name="days" length="6" default="two"/> days</module></schema>'

    plan = planned(plan_of(schema, prompt).selection, repair)

    assert [piece.source for piece in plan.reused][1:] == [plan.reused[-1].source.encoding.whole]
    assert [each.origin for each in plan.new] == [Origin.TEXT]
    assert plan.level is Level.EXACT


MODULES = (
    '<schema name="s" separator="" context="guaranteed"><module name="a">aaaaaa</module><module name="b">bbbbbb</module>'
    '<module name="c" requires="b">cccccc</module></schema>'
)


@pytest.mark.parametrize(
    ("prompt", "repair", "again"),
    [
        pytest.param("<a/>!", "first-2", [], id="nothing before it"),
        pytest.param("<a/><b/>!", "first-2", ["bb"], id="a module that has not seen the one before"),
        pytest.param("<b/><c/>!", "first-2", [], id="a module that requires the one before"),
        pytest.param("<a/><b/><c/>!", "first-2", ["bb", "cc"], id="all from the first on"),
        pytest.param("<a/><b/><c/>!", "first-34%", ["bbb", "ccc"], id="a share is rounded up"),
        pytest.param("<a/><b/><c/>!", "first-99", ["bbbbbb", "cccccc"], id="more than there are"),
        pytest.param("<a/><b/><c/>!", "all", ["bbbbbb", "cccccc"], id="all"),
    ],
)
def test_the_first_tokens_of_a_run_are_computed_again(prompt, repair, again):
    """`first-K` computes the first tokens of each run again, from the first run on whose context differs."""
    selection = plan_of(MODULES, f'<prompt schema="s">{prompt}</prompt>').selection

    plan = planned(selection, repair)

    found = [ByteTokenizer().detokenize(each.token_ids) for each in plan.new if each.origin is Origin.REPAIRED]
    assert found == again


@pytest.mark.parametrize(
    "text",
    [
        "",
        "some",
        "first",
        "first-",
        "first--1",
        "first-101%",
        "first-01",
        "first-1.5",
        "All",
        "attended",
        "attended-8-8",
    ],
)
def test_other_repairs_are_refused(text):
    """A text that names no repair is refused with the names there are."""
    with pytest.raises(InvalidValue, match="none, slots, all, attended-8 or first-16"):
        Repair.parse(text)


@pytest.mark.parametrize(
    "text", ["none", "slots", "first-0", "first-16", "first-20%", "first-100%", "attended-8", "attended-10%", "all"]
)
def test_repairs_print_as_they_are_written(text):
    """The text of a repair is the text that it was made from."""
    assert str(Repair.parse(text)) == text
