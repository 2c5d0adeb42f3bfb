"""Tests of the seam between cached text and the text of a prompt: its tokens are those of the whole text."""

from __future__ import annotations

import pytest

from promptcache.diagnostics import PromptError
from promptcache.language import Prompt, Repair, check_schema, parse_schema, resolve_prompt
from promptcache.layout import Level, Plan, lay_out, make_plan, run_variants
from promptcache.tokenizer import Before, HubTokenizer, Markup
from tests.laws.position_oracle import planned_tokens
from tests.templates.kinds import byte_level, metaspace_first
from tests.templates.shapes import SHAPES

VICUNA = SHAPES["header with a trailing space"].source
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def tokenizer(template: str = VICUNA) -> HubTokenizer:
    return HubTokenizer.from_parts(byte_level(), TOKENS, template)


def planned(schema: str, prompt: Prompt, used: HubTokenizer, repair: str = "slots") -> Plan:
    checked = check_schema(parse_schema(f'<schema name="s" separator="" whitespace="preserve">{schema}</schema>'))
    layout = lay_out(checked, used)
    return make_plan(resolve_prompt(prompt, checked), layout, run_variants(layout), used, Repair.parse(repair))


def ids(plan: Plan) -> list[int]:
    """Return the token IDs of a plan, at positions without a gap."""
    tokens = sorted(planned_tokens(plan))
    assert [position for position, _ in tokens] == [*range(len(tokens))]
    return [token_id for _, token_id in tokens]


def whole(text: str, used: HubTokenizer) -> list[int]:
    """Return the token IDs of a text that a template wrote."""
    return [*used.tokenize_parts([Markup(text)], Before.START)[0]]


def test_all_cached_tokens_are_reused_if_none_changes():
    """Text that joins nothing leaves all cached tokens in use."""
    used = tokenizer(SHAPES["chatml"].source)
    plan = planned("<system>Be brief.</system>", Prompt("s").user("the box"), used)

    assert plan.num_reused_tokens == plan.layout.stop
    assert plan.level is Level.EXACT


@pytest.mark.parametrize("said", ["the box", " box", "\n", "s"])
def test_bare_text_joins_the_text_of_an_open_turn(said: str):
    """Text that continues an open turn has the tokens that it has behind the text of the turn."""
    used = tokenizer()
    plan = planned("<user>Say the </user>", Prompt("s").text(said), used)

    assert ids(plan) == whole(f"<s>USER: Say the {said} ASSISTANT: ", used)
    assert plan.num_reused_tokens + plan.num_new_tokens == len(ids(plan))
    if said == "the box":
        assert plan.num_reused_tokens == len(whole("<s>USER: Say the", used))


def test_a_cached_text_may_change_as_a_whole():
    """If every token of the last cached text changes, none of them is reused."""
    used = tokenizer(SHAPES["plain conversation"].source)
    plan = planned("<system><text>\n</text></system>", Prompt("s").user("\n"), used)

    assert plan.reused == ()
    assert ids(plan) == whole("\n\n", used)


@pytest.mark.parametrize("length", [10, 199, 200, 201, 5000])
def test_long_texts_change_only_at_their_end(length: int):
    """Behind a long text all tokens are reused but those that the added text changes."""
    used = HubTokenizer.from_parts(metaspace_first(), TOKENS, VICUNA)
    text = ("the lazy dog. " * length)[:length]
    plan = planned(f"<system>{text}</system>", Prompt("s").user("the box"), used)

    assert ids(plan) == whole(f"<s>{text} USER: the box ASSISTANT: ", used)
    assert plan.num_new_tokens < 30


@pytest.mark.parametrize("repair", ["none", "first-2", "all"])
def test_no_repair_moves_the_seam(repair: str):
    """All settings of repair have the same tokens at the same positions."""
    used, schema = (
        tokenizer(),
        '<module name="m"><system>Say.</system></module><module name="n"><system>a </system></module>',
    )
    prompt = Prompt("s").use("m").use("n").user("the box")

    assert sorted(planned_tokens(planned(schema, prompt, used, repair))) == sorted(
        planned_tokens(planned(schema, prompt, used))
    )


def test_a_slot_at_the_end_is_a_border():
    """Text behind a slot is tokenized separately."""
    used = tokenizer()
    plan = planned('Say <parameter name="p" length="4" default="the"/>', Prompt("s").text("n"), used)

    assert [used.detokenize((token_id,)) for token_id in ids(plan)[-2:]] == [" the", "n"]


def test_nothing_added_to_an_empty_prompt_is_an_error():
    """A prompt without any text is refused, also if its schema has turns."""
    with pytest.raises(PromptError, match="PC506"):
        planned("<system></system>", Prompt("s").user(""), tokenizer(SHAPES["plain conversation"].source))
