"""The parts of an answer: its reasoning, its text, and its calls of tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from promptcache.answers.call_style import call_style
from promptcache.answers.reasoning import ChannelSplit, ReasoningSplit, SplitText, Tags, has_channels
from promptcache.layout import Plan
from promptcache.structured import CallSplit, CallStyle, Tool, ToolCall
from promptcache.tokenizer import Tokenizer

_NO_CALLS = CallStyle()
_NUM_LAST_TOKENS = 16  # of a prompt, with the tag that it may end with


class AnswerParts(NamedTuple):
    """The parts of a whole answer; `reasoning` is None without a block of reasoning."""

    reasoning: str | None
    text: str
    calls: tuple[ToolCall, ...]


class AnswerSplit:
    """Splits the text of an answer, piece by piece."""

    def __init__(self, reasoning: ReasoningSplit | ChannelSplit, calls: CallSplit | None) -> None:
        self._reasoning, self._calls = reasoning, calls

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls of tools, once `rest` was called."""
        return () if self._calls is None else self._calls.calls

    @property
    def has_reasoning(self) -> bool:
        """Whether the answer begins with reasoning, as far as it is known."""
        return self._reasoning.has_reasoning

    def add(self, piece: str) -> SplitText:
        """Add a piece of the text, and return what is known now."""
        known = self._reasoning.add(piece)
        return known if self._calls is None else SplitText(known.reasoning, self._calls.add(known.answer))

    def rest(self) -> SplitText:
        """Return the text that is held back, if no more follows."""
        known = self._reasoning.rest()
        if self._calls is None:
            return known
        return SplitText(known.reasoning, self._calls.add(known.answer) + self._calls.rest())


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReader:
    """How the text of an answer is read.

    Attributes:
        reasoning_tags: The texts around reasoning, or None.
        reasoning_is_open: Whether the prompt ends with the first of them.
        reasoning_is_closed: Whether the prompt ends with the second of them.
        has_channels: Whether reasoning, text and calls are channels.
        text_start: What the template writes in front of the text, behind reasoning.
        tool_names: The tools that the answer may call.
        call_style: How the model writes calls.
    """

    reasoning_tags: Tags | None = None
    reasoning_is_open: bool = False
    reasoning_is_closed: bool = False
    has_channels: bool = False
    text_start: str = ""
    tool_names: frozenset[str] = frozenset()
    call_style: CallStyle = _NO_CALLS

    def split(self) -> AnswerSplit:
        """Return a splitter for one answer."""
        calls = CallSplit(self.tool_names, self.call_style) if self.tool_names else None
        if self.has_channels:
            return AnswerSplit(ChannelSplit(), calls)
        return AnswerSplit(ReasoningSplit(self.reasoning_tags, is_open=self.reasoning_is_open), calls)

    def parts(self, text: str) -> AnswerParts:
        """Return the parts of a whole answer."""
        split = self.split()
        known = [split.add(text), split.rest()]
        reasoning = "".join(each.reasoning for each in known)
        answer = "".join(each.answer for each in known)
        return AnswerParts(reasoning if split.has_reasoning else None, answer, split.calls)


def answer_reader(tokenizer: Tokenizer, plan: Plan, tools: Sequence[Tool] = ()) -> AnswerReader:
    """Return the reader of the answers to a prompt.

    Raises:
        InvalidGeneration: The answers may call tools, and the form of calls is not known.
    """
    tags, end = tokenizer.reasoning_tags, ""
    if tags is not None:
        end = tokenizer.detokenize(plan.pieces[-1].token_ids[-_NUM_LAST_TOKENS:]).rstrip()
    is_open = tags is not None and end.endswith(tags[0])
    return AnswerReader(
        reasoning_tags=tags,
        reasoning_is_open=is_open,
        reasoning_is_closed=tags is not None and not is_open and end.endswith(tags[1]),
        has_channels=has_channels(tokenizer),
        text_start=tokenizer.answer_start,
        tool_names=frozenset(each.name for each in tools),
        call_style=call_style(tokenizer, tools) if tools else _NO_CALLS,
    )
