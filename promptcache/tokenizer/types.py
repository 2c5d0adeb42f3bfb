"""The protocol of tokenizers that layouts use, and the refusal of texts that cannot fit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from promptcache.language import ChatMessages

FROZEN_DATE = datetime(2024, 7, 26)
"""The date that chat templates get for turns of a schema, so that its tokens are the same every day."""

SLICE = 2**16
"""Characters of a long text that are tokenized at once. A million characters would take hundreds of megabytes."""

_CUT = 256
"""Tokens that a cut adds at most: a word that is cut may have other tokens than the whole word."""

_USUAL = 8
"""Characters for each allowed token of a text that is tokenized as a whole: ordinary text has fewer."""

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


class Markup(str):
    """Text that a chat template wrote. Control tokens in it stay control tokens; in other text they are text."""

    __slots__ = ()


class Before(StrEnum):
    """Kind of the text before another text in the input of a model. Some tokenizers add a space at a start."""

    START = "start"
    CONTROL = "control"
    TEXT = "text"


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token IDs and back, and the chat template of a model.

    A subclass has no chat template, no BOS and no control tokens, unless it defines them.
    """

    def __hash__(self) -> int:
        """What is learned from a tokenizer is kept by it."""
        return object.__hash__(self)

    @property
    def bos_ids(self) -> tuple[int, ...]:
        """The tokens that the tokenizer puts before a text; none for many models."""
        return ()

    @property
    def bos_form(self) -> str:
        """The written form of BOS, with which a chat template may begin; "" if the model has none."""
        return ""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that stop the generation, among them the end of a turn."""
        return ()

    @property
    def control_ids(self) -> frozenset[int]:
        """Special tokens, and tokens that only the chat template writes. No text of a schema or prompt becomes one."""
        return frozenset()

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Digest over vocabulary, rules and chat template."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about this tokenizer."""
        return ()

    @property
    def answer_start(self) -> str:
        """What the template writes in front of the text of an answer, behind its reasoning; "" if this is nothing."""
        return ""

    @property
    def reasoning_tags(self) -> tuple[str, str] | None:
        """The texts around the reasoning of an answer, such as `<think>` and `</think>`; None without reasoning."""
        return None

    @abstractmethod
    def tokenize(self, text: str) -> tuple[int, ...]:
        """Return the token IDs of `text` behind other text, none of them a control token."""

    def tokenize_parts(self, parts: Sequence[str], before: Before) -> tuple[tuple[int, ...], ...]:
        """Return the token IDs of adjacent texts, tokenized as one text, for each of the texts.

        A token that reaches over the border of two texts belongs to the second one.

        Args:
            parts: Texts; those that are `Markup` may have control tokens.
            before: What stands before them.
        """
        return tuple(map(self.tokenize, parts))

    @abstractmethod
    def detokenize(self, token_ids: Sequence[int]) -> str:
        """Return the text of `token_ids`, control tokens in their written form."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of an answer.

        End tokens, BOS and padding are left out, and what stands in front of every answer. Other special tokens are in
        their written form: they separate the parts of an answer.
        """
        return self.detokenize(token_ids)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of one token in UTF-8, also those of a token that is a part of a character."""
        return self.detokenize((token_id,)).encode()

    def render_chat(
        self,
        messages: ChatMessages,
        *,
        generation_prompt: bool,
        options: Mapping[str, Any] = NO_OPTIONS,
        date: datetime = FROZEN_DATE,
    ) -> str:
        """Return a conversation as the chat template renders it.

        Args:
            messages: `{"role": …, "content": …}` each.
            generation_prompt: Whether the beginning of an answer follows.
            options: Further variables of the template, such as `enable_thinking`.
            date: The date of today, for templates that write it.

        Raises:
            TemplateRefusal: The template does not render this conversation; the message has its reason.
        """
        return "".join(each["content"] for each in messages)


def has_more_tokens(tokenizer: Tokenizer, text: str, num_tokens: int) -> bool:
    """Return whether a long text has more than a number of tokens; False for a text that is short enough to count.

    The text is tokenized in slices, up to the first one that exceeds the number. Written forms of control tokens count
    as one token, so that markup is not counted twice.
    """
    if len(text) <= max(SLICE, _USUAL * num_tokens):
        return False
    least = 0
    for start in range(0, len(text), SLICE):
        (found,) = tokenizer.tokenize_parts([Markup(text[start : start + SLICE])], Before.TEXT)
        least += max(0, len(found) - _CUT)
        if least > num_tokens:
            return True
    return False
