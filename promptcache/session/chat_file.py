"""Saved conversations: a JSON file with the messages and the token IDs of the answers. The KV is computed again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from errno import EISDIR
from os import strerror
from pathlib import Path

from promptcache.atomic import atomic_write
from promptcache.diagnostics import InvalidValue, PromptCacheError, counted, is_text, shown
from promptcache.language import CHAT_SCHEMA, Prompt, Role, parse_prompt
from promptcache.planning import ChatTurn, chat_message
from promptcache.structured import ToolCall

FORMAT = "promptcache chat"
VERSION = 2
_ANSWER_FILE = "answer.schema.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedChat:
    """The content of a file.

    Attributes:
        question: The question that waits for the first answer.
        repair: As for `Engine.chat`.
    """

    prompt: Prompt
    question: str | None
    turns: tuple[ChatTurn, ...]
    repair: str | None


def write_chat(path: Path, chat: SavedChat) -> None:
    """Write a file. If this fails, the earlier file is as before."""
    is_plain = chat.prompt.schema == CHAT_SCHEMA
    said = chat.prompt.messages if is_plain else ()
    prompt, files = chat.prompt, dict[str, str]()
    if prompt.answer_format is not None and prompt.answer_format.schema is not None:  # a file, by a name of its own
        files = {_ANSWER_FILE: prompt.answer_format.schema}
        prompt = replace(prompt, answer_format=replace(prompt.answer_format, src=_ANSWER_FILE))
    answer = Prompt("plain", answer_format=prompt.answer_format) if is_plain and prompt.answer_format else None
    data = {
        "format": FORMAT,
        "version": VERSION,
        "prompt": None if is_plain else prompt.to_xml(),
        "answer": None if answer is None else answer.to_xml(),
        "files": files,
        "question": chat.question,
        "messages": [chat_message(each.role or Role.USER, each.text, each.reasoning) for each in said],
        "repair": chat.repair,
        "turns": [asdict(turn) for turn in chat.turns],
    }
    if path.is_dir():
        raise IsADirectoryError(EISDIR, strerror(EISDIR), str(path))
    with atomic_write(path) as file:
        file.write(json.dumps(data, indent=1, ensure_ascii=False).encode())


def read_chat(path: Path) -> SavedChat:
    """Read a file.

    Raises:
        InvalidValue: It cannot be read, or has another format.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidValue(f"{path}: cannot be read: {error.strerror}") from error
    try:
        data = json.loads(content)
        if (data["format"], data["version"]) != (FORMAT, VERSION):
            raise ValueError(f"its format is {shown(data['format'])}, version {shown(data['version'])}")
        messages, turns, files, question = data["messages"], data["turns"], data["files"], data["question"]
        if not isinstance(files, dict) or not all(map(is_text, files.values())):
            raise ValueError("files are texts by name")
        if not isinstance(turns, list):
            raise ValueError("turns are a list")
        plain = Prompt.from_messages(CHAT_SCHEMA, messages) if messages else Prompt(CHAT_SCHEMA)
        if data["answer"] is not None:
            plain = replace(plain, answer_format=parse_prompt(data["answer"], folder=files).answer_format)
        prompt = plain if data["prompt"] is None else parse_prompt(data["prompt"], folder=files)
        if not (question is None or (is_text(question) and not turns)):
            raise ValueError("question is the text that waits for the first answer, or null")
        return SavedChat(prompt=prompt, question=question, turns=_turns(turns), repair=data["repair"])
    except (PromptCacheError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise not_a_chat(path, error) from None


def not_a_chat(path: Path, why: object) -> InvalidValue:
    """Return the error for a file that is damaged, or something else."""
    return InvalidValue(f"{path} is not a saved chat of version {VERSION}, as chat.save writes it: {why}")


def _turns(data: Sequence[dict[str, object]]) -> tuple[ChatTurn, ...]:
    turns = tuple(map(_turn, data))
    num_calls = 0  # of the answer before
    for number, turn in enumerate(turns):
        if turn.results and (turn.question or len(turn.results) != num_calls):
            raise ValueError(
                f"turns[{number}] has {counted(len(turn.results), 'result')}{' and a question' * bool(turn.question)}: "
                f"the answer before has {counted(num_calls, 'call')}; give a result for each and no question"
            )
        num_calls = len(turn.tool_calls)
    return turns


def _turn(data: dict[str, object]) -> ChatTurn:
    question, answer, token_ids, reasoning = data["question"], data["answer"], data["token_ids"], data.get("reasoning")
    if not (is_text(question) and is_text(answer) and isinstance(token_ids, list)):
        raise ValueError("a turn has a question, an answer and token_ids, and no lone surrogates")
    if not (reasoning is None or is_text(reasoning)):
        raise ValueError("the reasoning of a turn is text")
    if not all(isinstance(each, int) and each >= 0 for each in token_ids):
        raise ValueError("token_ids are whole numbers")
    calls, results = data.get("tool_calls", []), data.get("results", [])
    if not (
        isinstance(calls, list)
        and all(isinstance(each, list) and len(each) == 2 and all(map(is_text, each)) for each in calls)
        and all(isinstance(json.loads(arguments), dict) for _, arguments in calls)
    ):
        raise ValueError("tool_calls are pairs of a name and JSON of its arguments")
    if not (isinstance(results, list) and all(map(is_text, results))):
        raise ValueError("results are texts")
    return ChatTurn(
        question=question,
        answer=answer,
        token_ids=tuple(token_ids),
        reasoning=reasoning,
        tool_calls=tuple(ToolCall(*each) for each in calls),
        results=tuple(results),
    )
