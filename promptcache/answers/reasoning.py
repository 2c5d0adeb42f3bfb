"""The reasoning of an answer, apart from the answer.

Models that reason write a block between two tags first, such as `<think>` and `</think>`. Some chat templates write the
first tag at the end of the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from promptcache.answers.text import num_open
from promptcache.layout import Plan
from promptcache.tokenizer import Tokenizer

_NUM_LAST_TOKENS = 16  # of a prompt, with the tag that it may end with

Tags: TypeAlias = tuple[str, str]


class SplitText(NamedTuple):
    """A text that is added to the reasoning, and one that is added to the answer."""

    reasoning: str
    answer: str


class ReasoningSplit:
    """Splits the text of an answer, piece by piece. White space around the reasoning is left out.

    Attributes:
        has_reasoning: Whether the answer begins with reasoning, as far as it is known.
    """

    def __init__(self, tags: Tags | None, *, is_open: bool) -> None:
        """Create a splitter for one answer.

        Args:
            tags: The tags around reasoning; None if the chat template has none.
            is_open: Whether the prompt ends with the first tag.
        """
        self.has_reasoning = is_open and tags is not None
        self._tags = tags
        self._is_answer = tags is None
        self._held = ""  # text whose place is not known yet
        self._wants_text = True  # white space at the start of reasoning, and of the answer behind it, is left out

    def add(self, piece: str) -> SplitText:
        """Add a piece of the text, and return what is known now."""
        if self._tags is None:
            return SplitText("", piece)
        self._held += piece
        opening, closing = self._tags
        if not self.has_reasoning and not self._is_answer:
            begin = self._held.lstrip()
            if opening.startswith(begin) and begin != opening:
                return SplitText("", "")  # it may be the beginning of the tag
            self.has_reasoning = begin.startswith(opening)
            self._is_answer = not self.has_reasoning
            self._wants_text = self.has_reasoning
            self._held = begin.removeprefix(opening) if self.has_reasoning else self._held
        reasoning = ""
        if not self._is_answer:
            before, found, after = self._held.partition(closing)
            if not found:
                return SplitText(self._text(before[: len(before) - _num_open(before, closing)]), "")
            reasoning, self._held = self._text(before.rstrip()), after
            self._is_answer = self._wants_text = True
        return SplitText(reasoning, self._text(self._held))

    def rest(self) -> SplitText:
        """Return the text that is held back, if no more follows."""
        held = self._held.lstrip() if self._wants_text and self.has_reasoning else self._held
        self._held = ""
        return SplitText(held.rstrip(), "") if self.has_reasoning and not self._is_answer else SplitText("", held)

    def _text(self, text: str) -> str:
        """Take a text that is held back, without white space at a start."""
        self._held = self._held[len(text) :] if not self._is_answer else ""
        text = text.lstrip() if self._wants_text else text
        self._wants_text = self._wants_text and not text
        return text


def last_tag(plan: Plan, tokenizer: Tokenizer) -> str | None:
    """Return the tag of reasoning with which a prompt ends: that which opens a block, or that which closes it."""
    tags = tokenizer.reasoning_tags
    if tags is None:
        return None
    ids: Sequence[int] = plan.pieces[-1].token_ids[-_NUM_LAST_TOKENS:]
    end = tokenizer.detokenize(ids).rstrip()
    return next((each for each in tags if end.endswith(each)), None)


def _num_open(text: str, closing: str) -> int:
    """Return the length of the end of a text that may belong to a closing tag, with white space before it."""
    kept = text[: len(text) - num_open(text, (closing,))]
    return len(text) - len(kept.rstrip())
