"""The reasoning of an answer, apart from the answer."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from promptcache.answers import AnswerReader

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
def test_pieces_add_up_to_the_whole(parts: list[str], is_open: bool) -> None:
    """Pieces of any size give what the whole text gives."""
    split = AnswerReader(reasoning_tags=TAGS, reasoning_is_open=is_open).split()
    found = [*map(split.add, parts), split.rest()]

    reasoning, answer = split_answer("".join(parts), TAGS, is_open=is_open)
    assert "".join(each.answer for each in found) == answer
    assert ("".join(each.reasoning for each in found) if split.has_reasoning else None) == reasoning


@given(text=TEXTS)
def test_text_without_tags_is_the_answer(text: str) -> None:
    """A text without a block of reasoning stays as it is, white space included."""
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
