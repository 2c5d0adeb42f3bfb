"""Laws of repair: which stored tokens a plan computes again, and where."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import InvalidValue
from promptcache.language import Repair, Selection
from promptcache.layout import Piece, Plan, lay_out, make_plan, run_variants
from tests import strategies
from tests.conftest import law_examples
from tests.fakes import ByteTokenizer
from tests.laws.level_oracle import true_level
from tests.laws.position_oracle import planned_tokens

BYTES = ByteTokenizer()


def planned(selection: Selection, repair: str, tokenizer: ByteTokenizer = BYTES) -> Plan:
    layout = lay_out(selection.schema, tokenizer)
    return make_plan(selection, layout, run_variants(layout), tokenizer, Repair.parse(repair))


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
