"""The turns of a conversation, as messages and tokens of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from promptcache.language import Message, Role, Selection
from promptcache.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """A question with its answer.

    Attributes:
        token_ids: Tokens of the answer as generated, with its reasoning and an end token.
        reasoning: The text of the reasoning before the answer; None if there is none.
    """

    question: str
    answer: str
    token_ids: tuple[int, ...]
    reasoning: str | None = None


def chat_message(role: Role, text: str, reasoning: str | None = None) -> dict[str, str]:
    message = {"role": str(role), "content": text}
    return {**message, "reasoning_content": reasoning} if reasoning else message


def with_turns(
    selection: Selection,
    layout: Layout,
    turns: Sequence[ChatTurn],
    question: str,
) -> tuple[Selection, dict[int, tuple[int, ...]]]:
    """Return a selection with the turns of a conversation and an open question, and the tokens of its answers.

    Returns:
        The selection, and for `make_plan` the tokens of the assistant's turns by index.
    """
    messages = list(selection.messages)
    answers: dict[int, tuple[int, ...]] = {}
    for turn in turns:
        messages.append(_question(turn.question, messages, layout, selection))
        answers[len(messages)] = turn.token_ids
        messages.append(
            Message(role=Role.ASSISTANT, text=turn.answer, span=selection.span, reasoning=turn.reasoning or "")
        )
    messages.append(_question(question, messages, layout, selection))
    return replace(selection, messages=tuple(messages)), answers


def _question(text: str, before: Sequence[Message], layout: Layout, selection: Selection) -> Message:
    """Return a user turn; the first question continues the turn that the schema leaves open."""
    role = None if layout.has_open_turn and not before else Role.USER
    return Message(role=role, text=text, span=selection.span)
