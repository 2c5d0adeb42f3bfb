"""The turns of a conversation, as messages and tokens of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from promptcache.language import Message, Role, Selection
from promptcache.layout import Layout
from promptcache.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """A question with its answer.

    Attributes:
        token_ids: Tokens of the answer as generated, an end token included.
    """

    question: str
    answer: str
    token_ids: tuple[int, ...]


def with_turns(
    selection: Selection,
    layout: Layout,
    turns: Sequence[ChatTurn],
    question: str,
    tokenizer: Tokenizer,
    end_ids: Sequence[int],
) -> tuple[Selection, dict[int, tuple[int, ...]]]:
    """Return a selection with the turns of a conversation and an open question, and the tokens of its answers.

    Returns:
        The selection, and for `make_plan` the tokens of the assistant's turns by index.
    """
    messages = list(selection.messages)
    answers: dict[int, tuple[int, ...]] = {}
    footer = tokenizer.frame(Role.ASSISTANT).footer_ids
    for turn in turns:
        messages.append(_question(turn.question, messages, layout, selection))
        answers[len(messages)] = closed(turn.token_ids, footer, end_ids)
        messages.append(Message(role=Role.ASSISTANT, text=turn.answer, span=selection.span))
    messages.append(_question(question, messages, layout, selection))
    return replace(selection, messages=tuple(messages)), answers


def closed(answer_ids: tuple[int, ...], footer_ids: tuple[int, ...], end_ids: Sequence[int]) -> tuple[int, ...]:
    """Return the tokens of an answer and the footer of its turn.

    A last token that begins the footer is not repeated. Another end token is dropped.
    """
    if answer_ids and footer_ids and answer_ids[-1] == footer_ids[0]:
        return answer_ids + footer_ids[1:]
    return (answer_ids[:-1] if answer_ids and answer_ids[-1] in end_ids else answer_ids) + footer_ids


def _question(text: str, before: Sequence[Message], layout: Layout, selection: Selection) -> Message:
    """Return a user turn; the first question continues the turn that the schema leaves open."""
    role = None if layout.has_open_turn and not before else Role.USER
    return Message(role=role, text=text, span=selection.span)
