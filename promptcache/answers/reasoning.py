"""The reasoning of an answer, apart from the answer.

Models that reason write a block between two tags first, such as `<think>` and `</think>`. Some chat templates write the
first tag at the end of the prompt.

In the form of OpenAI (harmony), an answer is one message or more: `<|channel|>NAME<|message|>TEXT`, with
`<|end|><|start|>assistant` between two. The final channel is its text, the others are its reasoning. A message to a
function, `to=functions.NAME` in front of its text, is a call of a tool.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeAlias

from promptcache.answers.text import num_open
from promptcache.tokenizer import Tokenizer

_MESSAGE = "<|message|>"
_BEGINS = ("<|channel|>", "<|start|>", "to=")
_ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>")
_END = re.compile("|".join(map(re.escape, _ENDS)))
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_FUNCTION = re.compile(r"\bto=functions\.([\w.-]+)")

Tags: TypeAlias = tuple[str, str]


class SplitText(NamedTuple):
    """A text that is added to the reasoning, and one that is added to the answer."""

    reasoning: str
    answer: str


class ReasoningSplit:
    """Splits the text of an answer, piece by piece. White space around the reasoning is left out.

    `is_open` says whether the prompt ends with the first of the tags; there are none if the chat template has none.

    Attributes:
        has_reasoning: Whether the answer begins with reasoning, as far as it is known.
    """

    def __init__(self, tags: Tags | None, *, is_open: bool) -> None:
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
                known = before[: len(before) - num_open(before, (closing,))]
                return SplitText(self._text(known.rstrip()), "")  # the white space may be that before the tag
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


def has_channels(tokenizer: Tokenizer) -> bool:
    """Whether answers have channels, because the chat template writes one in front of their text."""
    return _BEGINS[0] in tokenizer.answer_start


class ChannelSplit:
    """Splits the text of an answer, piece by piece, as `ReasoningSplit` does.

    Attributes:
        has_reasoning: Whether the answer has a message of reasoning, as far as it is known.
    """

    def __init__(self) -> None:
        self.has_reasoning = False
        self._held = ""  # text whose place is not known yet
        self._is_start = self._is_header = True
        self._is_reasoning = False
        self._wants_text = False  # white space at the start of a message is left out

    def add(self, piece: str) -> SplitText:
        """Add a piece of the text, and return what is known now."""
        self._held += piece
        reasoning = answer = ""
        before = None
        while self._held and self._held != before:
            before = self._held
            if self._is_header and self._may_be_header:
                header, found, rest = self._held.partition(_MESSAGE)
                if not found:
                    break
                self._held = rest
                more = self._begin(header)
            else:
                self._is_header = False  # at the start, an answer without channels
                more = self._take()
            reasoning, answer = reasoning + more.reasoning, answer + more.answer
        return SplitText(reasoning, answer)

    def rest(self) -> SplitText:
        """Return the text that is held back, if no more follows. A header that is cut is no text."""
        held, self._held = self._held, ""
        is_cut = self._is_header and (not self._is_start or held.lstrip().startswith(_BEGINS))
        return self._text("" if is_cut else held.rstrip() if self._is_reasoning else held)

    @property
    def _may_be_header(self) -> bool:
        """Whether the text that is held back is the beginning of a message."""
        begin = self._held.lstrip()
        return not self._is_start or begin.startswith(_BEGINS) or any(each.startswith(begin) for each in _BEGINS)

    def _begin(self, header: str) -> SplitText:
        """Begin a message, and return what comes in front of its text."""
        channel, function = _CHANNEL.search(header), _FUNCTION.search(header)
        is_next = self.has_reasoning
        self._is_start = self._is_header = False
        self._is_reasoning = function is None and channel is not None and channel[1] != "final"
        self._wants_text = True
        self.has_reasoning = self.has_reasoning or self._is_reasoning
        if function is not None:  # as the template writes it
            return SplitText("", f" to=functions.{function[1]}<|channel|>commentary json{_MESSAGE}")
        return SplitText("\n\n" if self._is_reasoning and is_next else "", "")

    def _take(self) -> SplitText:
        """Take the text of a message up to its end, as far as it is known."""
        end = _END.search(self._held)
        if end is not None:
            text, self._held = self._held[: end.start()], self._held[end.end() :]
            self._is_start, self._is_header = False, True
            return self._text(text.rstrip() if self._is_reasoning else text)
        stop = len(self._held) - num_open(self._held, _ENDS)
        stop = len(self._held[:stop].rstrip()) if self._is_reasoning else stop
        text, self._held = self._held[:stop], self._held[stop:]
        return self._text(text)

    def _text(self, text: str) -> SplitText:
        text = text.lstrip() if self._wants_text else text
        self._wants_text = self._wants_text and not text
        return SplitText(text, "") if self._is_reasoning else SplitText("", text)
