"""The reasoning of answers, and their channels: the final one is the text, calls are calls, and the others are reasoning."""

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from promptcache.answers import AnswerReader, has_channels
from promptcache.answers.call_style import call_style
from promptcache.answers.token_grammars import token_grammars
from promptcache.structured import Choice
from promptcache.tokenizer import Before, HubTokenizer, Markup
from tests.answers.test_call_style import TOOLS
from tests.tokenizer.small_tokenizers import with_controls

MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>", "<|constrain|>")
HARMONY = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}"
    "{% if m.role == 'assistant' and m.tool_calls %}{% set f = m.tool_calls[0].function %}"
    "{{ '<|start|>assistant to=functions.' + f.name + '<|channel|>commentary json<|message|>' }}"
    "{{ f.arguments | tojson }}<|call|>"
    "{% elif m.role == 'assistant' %}{% if m.thinking and loop.last and not add_generation_prompt %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
    "{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
CALL = '{"city": "Oslo"}'


def harmony() -> HubTokenizer:
    return with_controls(HARMONY, MARKS, eos="<|return|>")


def reader(tokenizer: HubTokenizer) -> AnswerReader:
    """Return the reader of answers that may call tools."""
    return AnswerReader(
        reasoning_tags=tokenizer.reasoning_tags,
        has_channels=has_channels(tokenizer),
        tool_names=frozenset(each.name for each in TOOLS),
        call_style=call_style(tokenizer, TOOLS),
    )


READER = reader(harmony())


@pytest.mark.parametrize(
    ("said", "reasoning", "text", "calls"),
    [
        (f"{FINAL}Paris.", None, "Paris.", []),
        (f"{ANALYSIS}A capital. {NEXT}{FINAL}Paris.", "A capital.", "Paris.", []),
        (f"{ANALYSIS}A{NEXT}{ANALYSIS}B{NEXT}{FINAL}C", "A\n\nB", "C", []),
        (f"{ANALYSIS}A", "A", "", []),
        (f"{ANALYSIS}A{NEXT}<|channel|>fi", "A", "", []),
        (f"{ANALYSIS}A{NEXT}<|channel|>commentary<|message|>I look.{NEXT}{FINAL}C", "A\n\nI look.", "C", []),
        (f"{ANALYSIS}A{NEXT} to=functions.weather<|channel|>commentary json<|message|>{CALL}", "A", "", ["weather"]),
        (
            f"{ANALYSIS}A{NEXT}<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{CALL}<|call|>",
            "A",
            "",
            ["weather"],
        ),
        ("Paris.", None, "Paris.", []),
    ],
)
def test_channels(said: str, reasoning: str | None, text: str, calls: list[str]) -> None:
    """The final channel is the text, a message to a function is a call, and the others are reasoning."""
    parts = READER.parts(said)
    assert (parts.reasoning, parts.text, [each.name for each in parts.calls]) == (reasoning, text, calls)
    assert all(json.loads(each.arguments) == json.loads(CALL) for each in parts.calls)


_PIECES = st.sampled_from([*MARKS[:4], "analysis", "final", "assistant", " to=functions.now", "{}", "<|", "a ", " b\n"])


@pytest.mark.law
@given(pieces=st.lists(_PIECES, max_size=12))
def test_pieces_add_up_to_the_whole(pieces: list[str]) -> None:
    split = READER.split()
    found = [*map(split.add, "".join(pieces)), split.rest()]
    parts = READER.parts("".join(pieces))
    assert "".join(each.answer for each in found) == parts.text
    assert ("".join(each.reasoning for each in found) if split.has_reasoning else None) == parts.reasoning


def test_channels_are_derived_from_the_template() -> None:
    """Tokens between parts of an answer are in its text, and the next turn has neither them nor the reasoning."""
    tokenizer = harmony()
    said = f"{ANALYSIS}A{NEXT}{FINAL}Paris."
    (token_ids,) = tokenizer.tokenize_parts([Markup(f"{said}<|return|>")], Before.CONTROL)
    assert tokenizer.decode(token_ids) == said
    assert (tokenizer.reasoning_tags, tokenizer.answer_start) == ((ANALYSIS, NEXT), FINAL)
    parts = READER.parts(said)
    turn = {"role": "assistant", "content": parts.text, "reasoning_content": parts.reasoning}
    messages = [{"role": "user", "content": "?"}, turn, {"role": "user", "content": "Sure?"}]
    rendered = tokenizer.render_chat(messages, generation_prompt=True)
    assert f"<|start|>assistant{FINAL}Paris.<|end|>" in rendered
    assert "analysis" not in rendered


@pytest.mark.parametrize("before", ["", f"{ANALYSIS}A{NEXT}"])
def test_a_format_is_that_of_the_final_channel(before: str) -> None:
    """An answer with a format has it in the final channel, behind reasoning or without it."""
    tokenizer = harmony()
    matcher = token_grammars(tokenizer, 1 + max(tokenizer.control_ids)).matcher(
        Choice(["yes"]), tokenizer.eos_ids, tokenizer.reasoning_tags, is_open=False, before=tokenizer.answer_start
    )
    (token_ids,) = tokenizer.tokenize_parts([Markup(f"{before}{FINAL}yes<|return|>")], Before.CONTROL)
    for token_id in token_ids:
        assert matcher.mask()[token_id]
        matcher.add(token_id)


_TALK = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|model|>BEFORE{{ m.content }}AFTER<|end|>"
    "{% else %}<|user|>{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|model|>{% endif %}"
)


@pytest.mark.parametrize(
    ("before", "after", "marks", "said"),
    [
        (
            "{% if m.thinking %}<|START_THINKING|>{{ m.thinking }}<|END_THINKING|>{% endif %}<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
            ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
            "<|START_THINKING|>A.<|END_THINKING|><|START_RESPONSE|>B.<|END_RESPONSE|>",
        ),
        (
            "{% if '<channel|>' in m.content %}{{ m.content.split('<channel|>')[-1] }}{% endif %}",
            "",
            ("<|channel>", "<channel|>"),
            "<|channel>thought\nA.\n<channel|>B.",
        ),
    ],
    ids=["Command R", "Gemma"],
)
def test_special_tokens_around_reasoning(before: str, after: str, marks: tuple[str, ...], said: str) -> None:
    """Reasoning between special tokens is apart from the text, which is without those around it."""
    template = _TALK.replace("BEFORE", before).replace("AFTER", after)
    tokenizer = with_controls(template, ("<|user|>", "<|model|>", "<|end|>", *marks), eos="<|end|>")
    (token_ids,) = tokenizer.tokenize_parts([Markup(said)], Before.CONTROL)
    parts = AnswerReader(reasoning_tags=tokenizer.reasoning_tags).parts(tokenizer.decode(token_ids))
    assert (parts.reasoning, parts.text) == ("A.", "B.")


def test_other_special_tokens_are_in_the_text() -> None:
    template = _TALK.replace("BEFORE", "").replace("AFTER", "")
    tokenizer = with_controls(template, ("<|user|>", "<|model|>", "<|end|>", "<|note|>"), eos="<|end|>")
    (token_ids,) = tokenizer.tokenize_parts([Markup("A<|note|>B<|end|>")], Before.CONTROL)
    assert tokenizer.decode(token_ids) == "A<|note|>B"


TAGS = ("<think>", "</think>")
TEXTS = st.text(alphabet="ab <>/think\n", max_size=12).filter(lambda text: not any(tag in text for tag in TAGS))
PARTS = st.lists(st.sampled_from([*TAGS, "<", "</", "<think", "</think", " ", "\n", "a", "bc"]), max_size=10)


def split_answer(text: str, tags: tuple[str, str] | None, *, is_open: bool) -> tuple[str | None, str]:
    """Return the reasoning and the text of a whole answer."""
    parts = AnswerReader(reasoning_tags=tags, reasoning_is_open=is_open).parts(text)
    return parts.reasoning, parts.text


@given(reasoning=TEXTS, answer=TEXTS, is_open=st.booleans(), around=st.sampled_from(["", "\n", "\n\n", " "]))
def test_text_between_tags_is_reasoning(reasoning: str, answer: str, is_open: bool, around: str) -> None:
    """The text between the tags is the reasoning, and what follows is the answer, without white space between."""
    said = f"{around if is_open else TAGS[0]}{around}{reasoning}{around}{TAGS[1]}{around}{answer}"
    assume(TAGS[1] not in f"{reasoning}{around}{TAGS[1]}"[:-1])
    assert split_answer(said, TAGS, is_open=is_open) == (reasoning.strip(), answer.lstrip())


@given(parts=PARTS, is_open=st.booleans())
def test_pieces_of_reasoning_add_up_to_the_whole(parts: list[str], is_open: bool) -> None:
    split = AnswerReader(reasoning_tags=TAGS, reasoning_is_open=is_open).split()
    found = [*map(split.add, parts), split.rest()]

    reasoning, answer = split_answer("".join(parts), TAGS, is_open=is_open)
    assert "".join(each.answer for each in found) == answer
    assert ("".join(each.reasoning for each in found) if split.has_reasoning else None) == reasoning


@given(text=TEXTS)
def test_text_without_tags_is_the_answer(text: str) -> None:
    assert split_answer(text, TAGS, is_open=False) == (None, text)
    assert split_answer(text, None, is_open=True) == (None, text)


@pytest.mark.parametrize(
    ("said", "is_open", "expected"),
    [
        ("Because.", True, ("Because.", "")),
        ("<think>Because.", False, ("Because.", "")),
        ("<think>\n\n</think>\n\nYes.", False, ("", "Yes.")),
        ("Yes.</think>No.", False, (None, "Yes.</think>No.")),
        ("\n<think>a</think>b<think>c</think>", False, ("a", "b<think>c</think>")),
    ],
)
def test_blocks(said: str, is_open: bool, expected: tuple[str | None, str]) -> None:
    """An answer that is cut off is reasoning only; a block in the middle is part of the answer."""
    assert split_answer(said, TAGS, is_open=is_open) == expected
