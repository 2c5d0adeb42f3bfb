"""The parts of an answer: its reasoning, its text, and its calls of tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from promptcache.layout import Plan
from promptcache.runtime.call_style import call_style
from promptcache.runtime.reasoning import ReasoningSplit, SplitText, Tags, is_open_in
from promptcache.structured import CallSplit, CallStream, CallStyle, Tool, ToolCall
from promptcache.tokenizer import Tokenizer


class AnswerParts(NamedTuple):
    """The parts of a whole answer; `reasoning` is None without a block of reasoning."""

    reasoning: str | None
    text: str
    calls: tuple[ToolCall, ...]


class AnswerSplit:
    """Splits the text of an answer, piece by piece."""

    def __init__(self, reasoning: ReasoningSplit, calls: CallSplit | None) -> None:
        self._reasoning, self._calls = reasoning, calls

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls of tools, once `rest` was called."""
        return () if self._calls is None else self._calls.calls

    @property
    def has_reasoning(self) -> bool:
        """Whether the answer begins with reasoning, as far as it is known."""
        return self._reasoning.has_reasoning

    @property
    def is_cut(self) -> bool:
        """Whether the answer ends inside of a call that is streamed."""
        return isinstance(self._calls, CallStream) and self._calls.is_cut

    def add(self, piece: str) -> SplitText:
        """Add a piece of the text, and return what is known now."""
        known = self._reasoning.add(piece)
        return known if self._calls is None else self._known(known.reasoning, self._calls.add(known.answer))

    def rest(self) -> SplitText:
        """Return the text that is held back, if no more follows."""
        known = self._reasoning.rest()
        if self._calls is None:
            return known
        return self._known(known.reasoning, self._calls.add(known.answer) + self._calls.rest())

    def _known(self, reasoning: str, answer: str) -> SplitText:
        return SplitText(reasoning, answer, self._calls.take() if isinstance(self._calls, CallStream) else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReader:
    """How the text of an answer is read.

    Attributes:
        reasoning_tags: The texts around reasoning, or None.
        reasoning_is_open: Whether the prompt ends with the first of them.
        tool_names: The tools that the answer may call.
        call_style: How the model writes calls.
    """

    reasoning_tags: Tags | None = None
    reasoning_is_open: bool = False
    tool_names: frozenset[str] = frozenset()
    call_style: CallStyle = field(default_factory=CallStyle)

    def split(self, *, streams_calls: bool = False) -> AnswerSplit:
        """Return a splitter for one answer; one that streams calls has those that are cut, too."""
        kind = CallStream if streams_calls else CallSplit
        calls = kind(self.tool_names, self.call_style) if self.tool_names else None
        return AnswerSplit(ReasoningSplit(self.reasoning_tags, is_open=self.reasoning_is_open), calls)

    def parts(self, text: str) -> AnswerParts:
        """Return the parts of a whole answer."""
        split = self.split()
        known = [split.add(text), split.rest()]
        reasoning = "".join(each.reasoning for each in known)
        answer = "".join(each.answer for each in known)
        return AnswerParts(reasoning if split.has_reasoning else None, answer, split.calls)


def answer_reader(tokenizer: Tokenizer, plan: Plan, tools: Sequence[Tool] = ()) -> AnswerReader:
    """Return the reader of the answers to a prompt."""
    return AnswerReader(
        reasoning_tags=tokenizer.reasoning_tags,
        reasoning_is_open=is_open_in(plan, tokenizer),
        tool_names=frozenset(each.name for each in tools),
        call_style=call_style(tokenizer).of(tools) if tools else CallStyle(),
    )
