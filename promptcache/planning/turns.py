"""The turns of a conversation, as messages and tokens of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from promptcache.language import CHAT_SCHEMA, Prompt, Role, Selection
from promptcache.layout import Layout
from promptcache.structured import ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTurn:
    """A question with its answer.

    Attributes:
        question: Its text; empty if `results` are asked instead.
        token_ids: Tokens of the answer as generated, with its reasoning and an end token.
        reasoning: The text of the reasoning before the answer; None if there is none.
        tool_calls: The calls of tools in the answer, which is without them.
        results: What the tools returned that the answer before called, in the order of its calls.
    """

    question: str
    answer: str
    token_ids: tuple[int, ...]
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    results: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A conversation on top of a prompt, up to the answer to `question`, or to `results` of tools instead."""

    prompt: Prompt
    turns: tuple[ChatTurn, ...]
    question: str
    results: tuple[str, ...] = ()


def chat_message(role: Role, text: str, reasoning: str | None = None) -> dict[str, Any]:
    message = {"role": str(role), "content": text}
    return {**message, "reasoning_content": reasoning} if reasoning else message


def turn_messages(turns: Sequence[ChatTurn]) -> list[dict[str, Any]]:
    """Return turns as chat messages."""
    messages = list[dict[str, Any]]()
    called = list[dict[str, Any]]()  # by the last answer
    num_calls = 0
    for turn in turns:
        messages += asked_messages(turn.question, turn.results, called)
        answer = chat_message(Role.ASSISTANT, turn.answer, turn.reasoning)
        called = [
            {"id": f"call{number:05}", "type": "function", "function": call._asdict()}  # Mistral's have nine characters
            for number, call in enumerate(turn.tool_calls, num_calls)
        ]
        num_calls += len(called)
        messages.append({**answer, "tool_calls": called} if called else answer)
    return messages


def asked_messages(question: str, results: Sequence[str], called: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages of a question, or of results of the calls of the answer before."""
    if not results:
        return [chat_message(Role.USER, question)]
    return [
        {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": result}
        for call, result in zip(called, results, strict=True)
    ]


def with_turns(selection: Selection, layout: Layout, chat: ChatPrompt) -> tuple[Selection, dict[int, tuple[int, ...]]]:
    """Return a selection with the turns of a conversation and an open question, and the tokens of its answers.

    Returns:
        The selection, and for `make_plan` the tokens of the assistant's turns by index.
    """
    before = turn_messages(chat.turns)
    called = before[-1].get("tool_calls", ()) if before else ()
    said = Prompt.from_messages(CHAT_SCHEMA, [*before, *asked_messages(chat.question, chat.results, called)]).messages
    messages = [*selection.messages, *(replace(each, span=selection.span) for each in said)]
    first = len(selection.messages)
    if layout.schema.has_open_turn and not first:
        messages[0] = replace(messages[0], role=None)  # it continues the turn that the schema leaves open
    places = (index for index, each in enumerate(messages) if index >= first and each.role is Role.ASSISTANT)
    answers = {index: turn.token_ids for index, turn in zip(places, chat.turns, strict=True)}
    return replace(selection, messages=tuple(messages)), answers
