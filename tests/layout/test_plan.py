"""Laws of the plan: every token once, at its place, reused where it can be, and its text continued as one text."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcache.diagnostics import ContextLengthExceeded, PromptError
from promptcache.language import Prompt, Repair, resolve_prompt
from promptcache.layout import Level, Piece, Plan, check_positions, lay_out, make_plan, run_variants
from promptcache.tokenizer import Before, HubTokenizer, Markup
from tests import strategies
from tests.conftest import law_examples
from tests.fakes import ByteTokenizer
from tests.laws.level_oracle import true_level
from tests.laws.position_oracle import SLOTS, planned_tokens
from tests.layout.samples import choose, plan_of, plan_selection, read
from tests.speed import is_within
from tests.templates.kinds import byte_level, metaspace_first
from tests.templates.shapes import SHAPES


def plan(schema: str, prompt: str, *, bos: bool = True) -> Plan:
    return plan_of(f'<schema name="s">{schema}</schema>', f'<prompt schema="s">{prompt}</prompt>', bos=bos)


def test_arguments_longer_than_their_slots_are_errors():
    """All of them are refused, each at its place and with both numbers."""
    slots = '<parameter name="p" length="4"/>b<parameter name="q" length="1"/>'
    with pytest.raises(PromptError) as caught:
        plan(f'<module name="m">a{slots}</module>', '\n<m p="12345" q="xx"/>!')

    assert [(fault.code, fault.span.line) for fault in caught.value.diagnostics] == [("PC501", 2)] * 2
    assert "'p' of module 'm' is 5 tokens, its slot holds 4" in caught.value.diagnostics[0].message


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("prompt", ["", "<m/>"])
def test_a_prompt_without_any_text_is_an_error(bos, prompt):
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


@pytest.mark.law
@settings(max_examples=law_examples(0.5))
@given(data=st.data(), schema=strategies.schemas(), tokenizer=strategies.TOKENIZERS)
def test_recomputed_tokens_keep_their_places(data, schema, tokenizer):
    plan = plan_selection(data.draw(strategies.prompts(schema)), tokenizer, SLOTS)
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
    "text", ["none", "slots", "first-0", "first-16", "first-20%", "first-100%", "attended-8", "attended-10%", "all"]
)
def test_repairs_print_as_they_are_written(text):
    assert str(Repair.parse(text)) == text


CLOSED = "<system>Plan.</system>"
OPEN = "<system>Plan.</system><user>Go.</user>"


@pytest.mark.parametrize(
    ("schema", "added", "is_told"),
    [
        (CLOSED, "", True),
        (CLOSED, "Why?", False),
        (CLOSED, "<user>Why?</user>", False),
        (CLOSED, "<user>Why?</user><assistant>So</assistant>", False),
        (OPEN, "", False),
        ("<user>Go.</user>", "", False),
        ("Text without turns.", "", False),
    ],
)
def test_a_prompt_that_asks_nothing_has_a_warning(schema: str, added: str, is_told: bool) -> None:
    """Text of the prompt or a last turn of the user is a question; without turns, text goes on."""
    plan = plan_of(f'<schema name="s">{schema}</schema>', f'<prompt schema="s">{added}</prompt>')

    assert [each.code for each in plan.warnings] == (["PC517"] if is_told else [])


LOOSE = '<module name="m">Sun.</module><union><module name="a">Sea.</module><module name="b">Sky.</module></union>'
NOTES = '<collection name="notes"><module name="n">Salt.</module></collection>'


@pytest.mark.parametrize(
    ("schema", "added", "of_schema", "of_prompt"),
    [
        (f"<user>{LOOSE}{NOTES}Go.</user>", "<m/><a/><notes><n/></notes>Why?", "", ""),
        (f"<user>Go.</user>{LOOSE}", "<b/>Why?", "the text of modules 'm', 'a', 'b'", "the text of module 'b'"),
        (f"<user>Go.</user>{LOOSE}", "Why?", "the text of modules 'm', 'a', 'b'", ""),
        (f"A text.<user>Go.</user>{LOOSE}", "<m/>", "text outside of modules and the text", "text outside of modules"),
        (f"<system>Go.</system>{NOTES}", "<notes><n/></notes>Why?", "the text of module 'notes'", "the text of module"),
        ('<module name="m"> <user>Go.</user> </module>', "<m/>", "", ""),
        (LOOSE, "<m/>Why?", "", ""),
        (LOOSE, "<m/><user>Why?</user>", "", "the text of module 'm'"),
    ],
)
def test_text_outside_of_turns_has_a_warning(schema: str, added: str, of_schema: str, of_prompt: str) -> None:
    """A schema with turns names its modules outside of them; a conversation names those that it has."""
    checked = read(f'<schema name="s">{schema}</schema>')
    layout = lay_out(checked, ByteTokenizer())
    selection = choose(checked, f'<prompt schema="s">{added}</prompt>')
    plan = make_plan(selection, layout, run_variants(layout), ByteTokenizer())

    for warnings, named in ((checked.warnings, of_schema), (plan.warnings, of_prompt)):
        found = [each for each in warnings if each.code == "PC518"]
        assert [each.message.startswith(named) for each in found] == ([True] if named else [])
        assert all(each.span.source is checked.source.span.source for each in found)


VICUNA = SHAPES["header with a trailing space"].source
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def tokenizer(template: str = VICUNA) -> HubTokenizer:
    return HubTokenizer.from_parts(byte_level(), TOKENS, template)


def behind_cached(schema: str, prompt: Prompt, used: HubTokenizer, repair: str = "slots") -> Plan:
    checked = read(f'<schema name="s" separator="" whitespace="preserve">{schema}</schema>')
    return plan_selection(resolve_prompt(prompt, checked), used, Repair.parse(repair))


def ids(plan: Plan) -> list[int]:
    """Return the token IDs of a plan, at positions without a gap."""
    tokens = sorted(planned_tokens(plan))
    assert [position for position, _ in tokens] == [*range(len(tokens))]
    return [token_id for _, token_id in tokens]


def whole(text: str, used: HubTokenizer) -> list[int]:
    return [*used.tokenize_parts([Markup(text)], Before.START)[0]]


def test_all_cached_tokens_are_reused_if_none_changes():
    used = tokenizer(SHAPES["chatml"].source)
    plan = behind_cached("<system>Be brief.</system>", Prompt("s").user("the box"), used)

    assert plan.num_reused_tokens == plan.layout.stop
    assert plan.level is Level.EXACT


@pytest.mark.parametrize("said", ["the box", " box", "\n", "s"])
def test_bare_text_joins_the_text_of_an_open_turn(said: str):
    """Text that continues an open turn has the tokens that it has behind the text of the turn."""
    used = tokenizer()
    plan = behind_cached("<user>Say the </user>", Prompt("s").text(said), used)

    assert ids(plan) == whole(f"<s>USER: Say the {said} ASSISTANT: ", used)
    assert plan.num_reused_tokens + plan.num_new_tokens == len(ids(plan))
    if said == "the box":
        assert plan.num_reused_tokens == len(whole("<s>USER: Say the", used))


def test_a_cached_text_may_change_as_a_whole():
    used = tokenizer(SHAPES["plain conversation"].source)
    plan = behind_cached("<system><text>\n</text></system>", Prompt("s").user("\n"), used)

    assert plan.reused == ()
    assert ids(plan) == whole("\n\n", used)


@pytest.mark.parametrize("length", [10, 199, 200, 201, 5000])
def test_long_texts_change_only_at_their_end(length: int):
    used = HubTokenizer.from_parts(metaspace_first(), TOKENS, VICUNA)
    text = ("the lazy dog. " * length)[:length]
    plan = behind_cached(f"<system>{text}</system>", Prompt("s").user("the box"), used)

    assert ids(plan) == whole(f"<s>{text} USER: the box ASSISTANT: ", used)
    assert plan.num_new_tokens < 30


@pytest.mark.parametrize("repair", ["none", "first-2", "all"])
def test_no_repair_moves_the_seam(repair: str):
    used, schema = (
        tokenizer(),
        '<module name="m"><system>Say.</system></module><module name="n"><system>a </system></module>',
    )
    prompt = Prompt("s").use("m").use("n").user("the box")

    assert sorted(planned_tokens(behind_cached(schema, prompt, used, repair))) == sorted(
        planned_tokens(behind_cached(schema, prompt, used))
    )


def test_a_slot_at_the_end_is_a_border():
    """Text behind a slot is tokenized separately."""
    used = tokenizer()
    plan = behind_cached('Say <parameter name="p" length="4" default="the"/>', Prompt("s").text("n"), used)

    assert [used.detokenize((token_id,)) for token_id in ids(plan)[-2:]] == [" the", "n"]
